"""What PyTorch gets done on several sides: one process by itself, and several together.

    figures.py [--tails] native "MPS=env CUDA_MPS_PIPE_DIRECTORY=..." "OpenMPS=openmps run --"

With --tails: how long requests to an inference server take that come by chance, alone and beside training of lower priority
(CUDA_MPS_CLIENT_PRIORITY), and how soon a second training starts beside a first.

A side is a name and what is put before each command. Prints one table; every figure is of this one run.
Processes are made ready first, so that only work is timed. `decode` is one token at a time of a small model, which
is bound by launches; `generate` is the same with a batch; training steps are bound by the GPU.
"""

import json
import random
import subprocess
import sys
import time
from functools import partial

SECONDS = 1
# How often each side has its turn alone.
TURNS = 5
TOGETHER = (2, 4, 8)
REPLICAS = 5
# Tokens of a sequence.
LENGTH = 24
# Of a server's requests, and what they take of the time that it could work.
SERVED_SECONDS = 12
LOAD = 0.5


# ---------------------------------------------------------------- in a worker


def trainer(net, loss_of):
    import torch

    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(net)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def resnet50():
    import torch
    import torchvision

    net = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    x = torch.rand(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    at = torch.arange(128, device="cuda")
    return trainer(net, lambda net: torch.nn.functional.cross_entropy(net(x), at))


def bert_base():
    import torch
    from transformers import BertConfig, BertForMaskedLM

    at = torch.randint(0, 30000, (32, 128), device="cuda")
    return trainer(BertForMaskedLM(BertConfig()).cuda(), lambda net: net(input_ids=at, labels=at).loss)


def bert_inference():
    import torch
    from transformers import BertConfig, BertModel

    net = BertModel(BertConfig()).cuda().to(torch.bfloat16).eval()
    at = torch.randint(0, 30000, (1, 128)).pin_memory()

    def step():
        with torch.inference_mode():
            return net(input_ids=at.to("cuda", non_blocking=True)).pooler_output[0, 0].item()

    return step


def decoder(layers, hidden, heads):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=32000
    )
    return LlamaForCausalLM(config)


def decoder_1b():
    import torch

    at = torch.randint(0, 32000, (4, 512), device="cuda")
    return trainer(decoder(16, 2048, 32).cuda(), lambda net: net(input_ids=at, labels=at).loss)


def tokens(batch):
    """One token more for each of a batch's sequences, which start again after LENGTH tokens."""
    import torch

    torch.manual_seed(1)
    net = decoder(8, 512, 8).cuda().to(torch.bfloat16).eval()
    state = {"past": None, "at": torch.ones(batch, 1, dtype=torch.long, device="cuda"), "length": 0}

    def step():
        with torch.inference_mode():
            out = net(input_ids=state["at"], past_key_values=state["past"], use_cache=True)
            state["at"] = out.logits[:, -1:].argmax(-1)
            state["past"], state["length"] = out.past_key_values, state["length"] + 1
            if state["length"] == LENGTH:
                state["past"], state["length"] = None, 0
        return state["at"][0, 0].item()

    return step


def graph():
    import torch

    x = torch.ones(64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x.mul_(1)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(10):
            x.mul_(1)

    def step():
        captured.replay()
        torch.cuda.synchronize()

    return step


WORK = {
    "ResNet-50 training": resnet50,
    "BERT-base training": bert_base,
    "1 B decoder training": decoder_1b,
    "decode": lambda: tokens(1),
    "generate": lambda: tokens(16),
    "graph of 10": graph,
}
SERVED = {"BERT-base inference": bert_inference}


def products():
    import torch

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def step():
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()

    return step


def device_copies():
    import torch

    a, b = torch.ones(2, 1 << 28, device="cuda")

    def step():
        for _ in range(10):
            b.copy_(a)
        torch.cuda.synchronize()

    return step


def host_copies():
    import torch

    host = torch.ones(1 << 24).pin_memory()
    there, back = host.cuda(), torch.empty(1 << 24).pin_memory()
    other = torch.cuda.Stream()

    def step():
        for _ in range(5):
            there.copy_(host, non_blocking=True)
            with torch.cuda.stream(other):
                back.copy_(there, non_blocking=True)
        torch.cuda.synchronize()

    return step


# What takes as much as there is of one thing.
TAKEN = {"matrix products": products, "copies on the device": device_copies, "copies to the host and back": host_copies}


def worker():
    begun = time.perf_counter()
    import torch

    imported = time.perf_counter()
    torch.ones(1, device="cuda").item()
    print(json.dumps({"import": imported - begun, "first": time.perf_counter() - imported}), flush=True)
    ready = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["work"]
        if name not in ready:
            ready.clear()
            torch.cuda.empty_cache()
            ready[name] = (WORK | SERVED | TAKEN)[name]()
            # Every length once, since cuDNN compiles for each.
            for _ in range(LENGTH + 2):
                ready[name]()
        step = ready[name]
        if request["seconds"] == 0:
            print(json.dumps({"reserved": torch.cuda.memory_reserved()}), flush=True)
            continue
        count, took, begun = 0, [], time.perf_counter()
        chance, comes = random.Random(1), begun
        while (now := time.perf_counter()) - begun < request["seconds"]:
            if mean := request.get("mean"):
                comes += chance.expovariate(1 / mean)
                while time.perf_counter() < comes:
                    pass
                now = comes
            step()
            count += 1
            took.append(time.perf_counter() - now)
        took.sort()
        print(
            json.dumps({"rate": count / (time.perf_counter() - begun), "median": took[count // 2], "p99": took[count * 99 // 100]}),
            flush=True,
        )


# ---------------------------------------------------------------- beside them


class Worker:
    def __init__(self, prefix):
        self.process = subprocess.Popen(
            [*prefix.split(), sys.executable, __file__, "worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, work, seconds, **more):
        self.process.stdin.write(json.dumps({"work": work, "seconds": seconds, **more}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with {self.process.wait()}")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def together(workers, work):
    for worker in workers:
        worker.ask(work, 0)
    for worker in workers:
        worker.answer()
    for worker in workers:
        worker.ask(work, SECONDS)
    answers = [worker.answer() for worker in workers]
    return sum(answer["rate"] for answer in answers), answers


def memory_used():
    """MiB in use on the device, whoever has it."""
    text = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True
    ).stdout
    return float(text.split()[0])


def memory_at_rest():
    """The same once nobody gives memory back any more, which takes a moment after processes' ends."""
    used = memory_used()
    while True:
        time.sleep(1)
        before, used = used, memory_used()
        if used >= before:
            return used


def starts(prefix, tell):
    """What it takes to begin, in time and in memory of the GPU."""
    before = memory_at_rest()
    one = Worker(prefix)
    tell("exec to first result, CUDA part, ms", one.answer()["first"] * 1e3)
    # A PyTorch process that has made one small tensor: 2 MiB of it are tensors.
    tell("GPU memory of the 1st process, MiB", memory_used() - before)
    second = Worker(prefix)
    tell("the same, second process, ms", second.answer()["first"] * 1e3)
    second.end()
    first = memory_at_rest()
    workers = [Worker(prefix) for _ in range(max(TOGETHER))]
    first_results = [worker.answer()["first"] for worker in workers]
    tell(f"the same, {len(workers)} at once, median, ms", median(first_results) * 1e3)
    tell(f"GPU memory of each of {len(workers)} processes more, MiB", (memory_used() - first) / len(workers))
    return one, workers


def median(values):
    return sorted(values)[len(values) // 2]


def alone(workers, tell):
    """What one process gets done on each side while the others' wait: all sides in turn, again and again, since a machine's
    speed changes from one minute to the next. Medians of the turns."""
    for work in WORK:
        for worker in workers.values():
            together([worker], work)
        turns = {name: [] for name in workers}
        for _ in range(TURNS):
            for name, worker in workers.items():
                turns[name].append(together([worker], work)[1][0])
        for name, answers in turns.items():
            if work == "graph of 10":
                tell(name, "graph of 10 kernels: replay and wait, us", median([answer["median"] * 1e6 for answer in answers]))
            else:
                tell(name, f"{work}, steps/s", median([answer["rate"] for answer in answers]))


def several(workers, tell):
    """What many processes of one side get done together."""
    for count in TOGETHER:
        rate, answers = together(workers[:count], "decode")
        tell(f"{count} x decode, steps/s in all", rate)
        tell(f"{count} x decode, 99th percentile, ms", max(answer["p99"] for answer in answers) * 1e3)
    tell(f"{REPLICAS} x generate, steps/s in all", together(workers[:REPLICAS], "generate")[0])


def asked(worker, work, seconds, **more):
    worker.ask(work, seconds, **more)
    return worker.answer()


def tails(prefix, mean, tell):
    """What a server and a training do to each other, and a training that starts to one that runs. `mean` is the time between
    two requests, or None to take it from how quick this side is. Returns it."""
    server, trainer = Worker(prefix), Worker("env CUDA_MPS_CLIENT_PRIORITY=1 " + prefix)
    served, trained = "BERT-base inference", "ResNet-50 training"
    for worker, work in ((server, served), (trainer, trained)):
        worker.answer()
        asked(worker, work, 0)
    mean = mean or 1 / asked(server, served, 2)["rate"] / LOAD
    alone = asked(server, served, SERVED_SECONDS, mean=mean)
    tell("inference alone, median, ms", alone["median"] * 1e3)
    tell("inference alone, 99th percentile, ms", alone["p99"] * 1e3)
    for work in (*TAKEN, trained):
        asked(trainer, work, 0)
        rate_alone = asked(trainer, work, 3)["rate"]
        trainer.ask(work, SERVED_SECONDS + 1)
        time.sleep(0.5)
        beside = asked(server, served, SERVED_SECONDS, mean=mean)
        rate_beside = trainer.answer()["rate"]
        tell(f"inference beside {work}, median, ms", beside["median"] * 1e3)
        tell("99th percentile, ms, beside " + work, beside["p99"] * 1e3)
        tell("99th percentile, of that alone, beside " + work, beside["p99"] / alone["p99"])
        tell(f"{work} beside inference, of its rate alone", rate_beside / rate_alone)
    server.end()
    still = asked(trainer, trained, 5)
    # As long as the second takes to import PyTorch and to make its first step, and some seconds more.
    trainer.ask(trained, 25)
    begun = time.perf_counter()
    second = Worker(prefix)
    second.answer()
    asked(second, trained, 0)
    tell("a second training's start beside a first, to its 26th step, s", time.perf_counter() - begun)
    second.end()
    disturbed = trainer.answer()
    tell("the first training's 99th percentile of a step meanwhile, of that alone", disturbed["p99"] / still["p99"])
    trainer.end()
    return mean


def main():
    arguments = sys.argv[1:]
    only_tails = "--tails" in arguments
    sides = dict(side.partition("=")[::2] for side in arguments if not side.startswith("--"))
    results = {name: {} for name in sides}

    def tell(name, figure, value):
        results[name][figure] = value
        print(f"{name}: {figure}: {value:.4g}", file=sys.stderr, flush=True)

    if only_tails:
        mean = None
        for name, prefix in sides.items():
            try:
                mean = tails(prefix, mean, partial(tell, name))
            except (RuntimeError, BrokenPipeError) as error:
                print(f"{name}: {error}", file=sys.stderr)
    else:
        throughput(sides, tell)
    rows = max(results.values(), key=len)
    print("| | " + " | ".join(results) + " |")
    print("|---|" + "---:|" * len(results))
    for row in rows:
        print(f"| {row} | " + " | ".join(f"{figures[row]:.4g}" if row in figures else "failed" for figures in results.values()) + " |")


def throughput(sides, tell):
    """What starts cost, and what one process and several get done."""
    ones = {}
    for name, prefix in sides.items():
        try:
            ones[name], workers = starts(prefix, partial(tell, name))
            several(workers, partial(tell, name))
            for worker in workers:
                worker.end()
        except (RuntimeError, BrokenPipeError) as error:
            print(f"{name}: {error}", file=sys.stderr)
    try:
        alone(ones, tell)
    except (RuntimeError, BrokenPipeError) as error:
        print(error, file=sys.stderr)


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
