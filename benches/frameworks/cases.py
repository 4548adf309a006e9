"""Small programs over PyTorch, CuPy, JAX, Numba and cuda-python, each with a result that can be compared.

    cases.py --list                 prints each case's name, its group and its environment, tab-separated
    cases.py --run NAME ...         runs cases one after another, a line of JSON each

A case returns numbers and tensors. It is run twice: `digest` is of the first result, `again` of the second, so
that whoever compares two machines knows whether a result repeats itself at all. Cases of one group may share a
process; a case of group "own" gets one of its own, with its environment.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

CASES = {}


def case(group, **environment):
    def keep(function):
        CASES[function.__name__] = (group, environment, function)
        return function

    return keep


def seeded():
    import torch

    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    return torch


def rand(*shape, dtype=None):
    import torch

    # Made on the CPU, so that every device starts from the same numbers.
    return torch.rand(*shape, generator=torch.Generator().manual_seed(7)).to("cuda", dtype)


def script(text, *arguments, timeout=120):
    """Runs a Python program in a process of its own and returns what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w") as file:
            file.write(text)
        process = subprocess.Popen(
            [sys.executable, path, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            # Ranks that wait for each other are children of it, and would keep the server's clients from ending.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode}: {errors.strip()[-600:]}")
    return output


# ---------------------------------------------------------------- PyTorch: eager operators


@case("eager")
def eager_elementwise():
    torch = seeded()
    x = rand(1000, 1000)
    return [x + 1, x * x, x.exp(), x.sin().cos(), torch.where(x > 0.5, x, -x), x.half().float(), x.to(torch.bfloat16)]


@case("eager")
def eager_reductions():
    x = rand(1000, 1000)
    return [x.sum(), x.mean(0), x.max(1).values, x.var(), x.norm(), x.prod(1), x.argmin(), (x > 0.5).any()]


@case("eager")
def eager_sort_topk_unique():
    torch = seeded()
    x = rand(200_000)
    return [x.sort().values, x.topk(50).values, (x * 100).int().unique(), x.argsort(), torch.bincount((x * 9).int())]


@case("eager")
def eager_indexing():
    torch = seeded()
    x = rand(500, 500)
    at = torch.arange(0, 500, 3, device="cuda")
    y = torch.zeros(500, 500, device="cuda")
    y[at] = x[at] * 2
    return [y, x.gather(1, at.repeat(500, 1)), x[x > 0.9], x.index_select(0, at), x.masked_fill(x < 0.1, 0)]


@case("eager")
def eager_scan_cat_pad():
    torch = seeded()
    x = rand(300, 700)
    return [x.cumsum(1), x.cumprod(0), torch.cat([x, x], 1), torch.stack([x, x]), x.flip(0), x.roll(5, 1), x.t().contiguous()]


@case("eager")
def random_numbers():
    torch = seeded()
    x = torch.empty(10_000, device="cuda")
    return [
        torch.rand(10_000, device="cuda"), torch.randn(10_000, device="cuda"), torch.randperm(10_000, device="cuda"),
        x.exponential_().clone(), torch.multinomial(rand(1000), 10), torch.bernoulli(rand(1000)),
    ]


@case("eager")
def losses_and_norms():
    torch = seeded()
    f = torch.nn.functional
    x, at = rand(64, 1000), torch.arange(64, device="cuda")
    return [
        f.cross_entropy(x, at), f.softmax(x, 1), f.log_softmax(x, 1), f.layer_norm(x, (1000,)), f.gelu(x), f.mse_loss(x, x * 2),
        f.group_norm(rand(4, 8, 5, 5), 4), f.embedding(at, x), f.dropout(x, 0.5),
    ]


@case("eager")
def interpolation_and_pooling():
    torch = seeded()
    f = torch.nn.functional
    x = rand(4, 3, 32, 32)
    return [
        f.max_pool2d(x, 2), f.avg_pool2d(x, 2), f.adaptive_avg_pool2d(x, 5), f.interpolate(x, scale_factor=2, mode="bilinear"),
        f.grid_sample(x, rand(4, 8, 8, 2) * 2 - 1, align_corners=False), f.unfold(x, 3),
    ]


# ---------------------------------------------------------------- PyTorch: cuBLAS and cuBLASLt


def products(dtype, tf32=False):
    torch = seeded()
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = rand(512, 384, dtype=dtype), rand(384, 256, dtype=dtype)
    linear = torch.nn.functional.linear
    return [a @ b, torch.bmm(rand(8, 64, 32, dtype=dtype), rand(8, 32, 48, dtype=dtype)), linear(a, b.t(), rand(256, dtype=dtype)), a @ b[:, 0]]


@case("blas")
def blas_fp64():
    import torch

    return products(torch.float64)


@case("blas")
def blas_fp32():
    import torch

    return products(torch.float32)


@case("blas")
def blas_tf32():
    import torch

    return products(torch.float32, tf32=True)


@case("blas")
def blas_bf16():
    import torch

    return products(torch.bfloat16)


@case("blas")
def blas_fp16():
    import torch

    return products(torch.float16)


@case("blas")
def blas_fp8():
    torch = seeded()
    a = rand(256, 128).to(torch.float8_e4m3fn)
    b = rand(192, 128).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    return [torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)]


@case("blas")
def blas_int8():
    torch = seeded()
    a = (rand(256, 128) * 100).to(torch.int8)
    b = (rand(128, 64) * 100).to(torch.int8)
    return [torch._int_mm(a, b)]


@case("blas")
def blas_large_bf16():
    import torch

    a = rand(4096, 4096, dtype=torch.bfloat16)
    return [a @ a]


@case("blas")
def blas_epilogues():
    torch = seeded()
    x, w, b = rand(256, 512, dtype=torch.bfloat16), rand(1024, 512, dtype=torch.bfloat16), rand(1024, dtype=torch.bfloat16)
    return [torch._addmm_activation(b, x, w.t(), use_gelu=True), torch.addmm(b, x, w.t()), torch.baddbmm(x.repeat(2, 1, 1), x.repeat(2, 1, 1)[:, :, :128], rand(2, 128, 512, dtype=torch.bfloat16))]


# ---------------------------------------------------------------- PyTorch: cuDNN


def convolution(dtype, layout, dimensions=2):
    torch = seeded()
    torch.backends.cudnn.deterministic = True
    kind = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[dimensions]
    net = kind(16, 32, 3, padding=1).cuda().to(dtype)
    x = rand(4, 16, *[16] * dimensions, dtype=dtype)
    if layout:
        net, x = net.to(memory_format=layout), x.to(memory_format=layout)
    x.requires_grad_()
    y = net(x)
    y.sum().backward()
    return [y, x.grad, net.weight.grad, net.bias.grad]


@case("dnn")
def conv_fp32():
    import torch

    return convolution(torch.float32, None)


@case("dnn")
def conv_bf16_channels_last():
    import torch

    return convolution(torch.bfloat16, torch.channels_last)


@case("dnn")
def conv_fp16():
    import torch

    return convolution(torch.float16, None)


@case("dnn")
def conv_1d_and_3d():
    import torch

    return convolution(torch.float32, None, 1) + convolution(torch.float32, None, 3)


@case("dnn")
def conv_transposed_grouped():
    torch = seeded()
    torch.backends.cudnn.deterministic = True
    x = rand(2, 16, 20, 20)
    return [torch.nn.ConvTranspose2d(16, 8, 3, stride=2).cuda()(x), torch.nn.Conv2d(16, 16, 3, groups=16).cuda()(x), torch.nn.Conv2d(16, 16, 3, dilation=2).cuda()(x)]


@case("dnn")
def conv_benchmark_mode():
    torch = seeded()
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
    y = torch.nn.Conv2d(16, 32, 3).cuda()(rand(8, 16, 32, 32))
    torch.backends.cudnn.benchmark = False
    # Which algorithm wins is up to the clock, so the result is compared to three digits.
    return [(y * 1000).round()[..., ::7].sum().round() > 0]


@case("dnn")
def batch_norm():
    torch = seeded()
    net = torch.nn.BatchNorm2d(16).cuda()
    y = net(rand(4, 16, 8, 8))
    return [y, net.running_mean, net.running_var]


def recurrent(kind):
    torch = seeded()
    net = kind(32, 64, num_layers=2, batch_first=True).cuda()
    x = rand(8, 20, 32).requires_grad_()
    y, _ = net(x)
    y.sum().backward()
    return [y, x.grad]


@case("dnn")
def lstm():
    import torch

    return recurrent(torch.nn.LSTM)


@case("dnn")
def gru():
    import torch

    return recurrent(torch.nn.GRU)


@case("dnn")
def ctc_loss():
    torch = seeded()
    x = rand(50, 4, 20).log_softmax(2)
    at = torch.arange(1, 41, device="cuda").view(4, 10).remainder(19) + 1
    return [torch.nn.functional.ctc_loss(x, at, torch.full((4,), 50), torch.full((4,), 10))]


# ---------------------------------------------------------------- PyTorch: attention


def attention(backend):
    torch = seeded()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = rand(2, 8, 128, 64, dtype=torch.bfloat16).requires_grad_()
    k, v = rand(2, 8, 128, 64, dtype=torch.bfloat16), rand(2, 8, 128, 64, dtype=torch.bfloat16)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y.sum().backward()
    return [y, q.grad]


@case("attention")
def sdpa_flash():
    return attention("FLASH_ATTENTION")


@case("attention")
def sdpa_efficient():
    return attention("EFFICIENT_ATTENTION")


@case("attention")
def sdpa_math():
    return attention("MATH")


@case("attention")
def sdpa_cudnn():
    return attention("CUDNN_ATTENTION")


@case("attention")
def transformer_layer():
    torch = seeded()
    net = torch.nn.TransformerEncoderLayer(256, 8, 512, batch_first=True, dropout=0).cuda()
    y = net(rand(4, 64, 256))
    y.sum().backward()
    return [y, net.linear1.weight.grad]


# ---------------------------------------------------------------- PyTorch: training


def classifier():
    torch = seeded()
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).cuda()
    return torch, net, rand(256, 64), torch.arange(256, device="cuda") % 10


def train(optimizer, steps=20, **options):
    torch, net, x, at = classifier()
    optimizer = getattr(torch.optim, optimizer)(net.parameters(), lr=1e-2, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), at)
        loss.backward()
        optimizer.step()
    return [loss, *net.parameters()]


@case("training")
def train_sgd():
    return train("SGD", momentum=0.9)


@case("training")
def train_fused_adam():
    return train("AdamW", fused=True)


@case("training")
def train_foreach_adam():
    return train("Adam", foreach=True)


@case("training")
def train_capturable_adam():
    return train("Adam", capturable=True)


@case("training")
def train_amp_fp16():
    torch, net, x, at = classifier()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(net(x), at)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [loss, *net.parameters()]


@case("training")
def gradient_checkpointing():
    torch, net, x, _ = classifier()
    from torch.utils.checkpoint import checkpoint

    x.requires_grad_()
    checkpoint(net, x, use_reentrant=False).sum().backward()
    return [x.grad]


@case("training")
def double_backward():
    torch = seeded()
    x = rand(100).requires_grad_()
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    return [g, h]


# ---------------------------------------------------------------- PyTorch: streams, threads, host memory


@case("streams")
def streams_and_events():
    torch = seeded()
    streams = [torch.cuda.Stream() for _ in range(4)]
    x = rand(512, 512)
    results = []
    for at, stream in enumerate(streams):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x
            for _ in range(5):
                y = (y @ x) / 256
            results.append(y + at)
    event = torch.cuda.Event(enable_timing=True)
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    event.record()
    event.synchronize()
    return results


@case("streams")
def threads():
    import threading

    x, results = rand(256, 256), [None] * 8

    def work(at):
        y = x * (at + 1)
        for _ in range(20):
            y = (y @ x).remainder(1)
        results[at] = y

    workers = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    return results


@case("streams")
def pin_memory_in_a_new_thread():
    import threading

    import torch

    result = []

    def work():
        try:
            pinned = torch.ones(10).pin_memory()
            result.append(pinned.cuda(non_blocking=True) + pinned.is_pinned())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(result[0], Exception):
        raise result[0]
    return result


@case("streams")
def pinned_copies():
    import torch

    pinned = torch.arange(1 << 20).float().pin_memory()
    there = pinned.to("cuda", non_blocking=True)
    back = torch.empty(1 << 20, pin_memory=True)
    back.copy_(there * 2, non_blocking=True)
    torch.cuda.synchronize()
    return [there, back]


@case("streams")
def host_register_shared_memory():
    import torch

    x = torch.arange(1 << 16).float().share_memory_()
    runtime = torch.cuda.cudart()
    status = int(runtime.cudaHostRegister(x.data_ptr(), x.numel() * 4, 0))
    if status:
        raise RuntimeError(f"cudaHostRegister: {status}")
    y = x.to("cuda", non_blocking=True) + 1
    torch.cuda.synchronize()
    status = int(runtime.cudaHostUnregister(x.data_ptr()))
    return [y, status]


LOADER = """
import sys, torch
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, at): return torch.full((1000,), float(at * at))
if __name__ == "__main__":
    how, before = sys.argv[1], sys.argv[2] == "before"
    if before: torch.ones(1, device="cuda")
    loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context=how, persistent_workers=True)
    for _ in range(2):
        print(sum(batch.cuda(non_blocking=True).sum().item() for batch in loader))
"""


@case("own")
def loader_fork_before_cuda():
    return script(LOADER, "fork", "after")


@case("own")
def loader_fork_after_cuda():
    return script(LOADER, "fork", "before")


@case("own")
def loader_spawn_after_cuda():
    return script(LOADER, "spawn", "before")


@case("own")
def cuda_in_forked_child():
    return script(
        """
import os, torch
torch.ones(1, device="cuda")
child = os.fork()
if child == 0:
    try: torch.ones(1, device="cuda")
    except RuntimeError as error: print(str(error).splitlines()[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(torch.ones(3, device="cuda").sum().item())
"""
    )


@case("own")
def tensors_between_processes():
    return script(
        """
import torch, torch.multiprocessing as mp
def work(ask, tell):
    x = ask.get(); x += 1; tell.put(x.sum().item()); ask.get()
if __name__ == "__main__":
    mp.set_start_method("spawn")
    ask, tell = mp.Queue(), mp.Queue()
    child = mp.Process(target=work, args=(ask, tell)); child.start()
    x = torch.arange(1000.0, device="cuda"); ask.put(x)
    print(tell.get(timeout=60), x.sum().item()); ask.put(None); child.join(); print(child.exitcode)
"""
    )


@case("own")
def nccl_one_rank():
    return script(
        """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{20000 + os.getpid() % 20000}", rank=0, world_size=1, device_id=torch.device("cuda:0"))
x = torch.arange(1000.0, device="cuda"); dist.all_reduce(x); dist.broadcast(x, 0); dist.barrier()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
net(torch.ones(2, 8, device="cuda")).sum().backward()
print(x.sum().item(), [p.grad.shape for p in net.parameters()]); dist.destroy_process_group()
"""
    )


# ---------------------------------------------------------------- PyTorch: graphs


@case("graphs")
def graph_replay():
    torch = seeded()
    x = rand(256, 256)
    y = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y.copy_((x @ x).relu())
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = (x @ x).relu() + 1
        y.copy_(z)
    results = []
    for scale in range(3):
        x.copy_(rand(256, 256) * scale)
        graph.replay()
        results.append(y.clone())
    return results


@case("graphs")
def graphed_training():
    torch, net, x, at = classifier()
    net = torch.cuda.make_graphed_callables(net, (x.clone(),))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), at)
        loss.backward()
        optimizer.step()
    return [loss]


@case("graphs")
def graph_whole_step():
    torch, net, x, at = classifier()
    optimizer = torch.optim.Adam(net.parameters(), capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(net(x), at)
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(5):
        graph.replay()
    return [loss]


@case("graphs")
def graph_with_convolution():
    torch = seeded()
    torch.backends.cudnn.deterministic = True
    net = torch.nn.Conv2d(8, 8, 3).cuda()
    x = rand(2, 8, 16, 16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        net(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = net(x)
    graph.replay()
    return [y]


# ---------------------------------------------------------------- PyTorch: compilers


def compiled(**options):
    torch = seeded()

    def f(x, w):
        return torch.nn.functional.gelu(x @ w).softmax(-1).sum(0)

    torch._dynamo.reset()
    g = torch.compile(f, **options)
    x, w = rand(128, 256), rand(256, 64)
    # Graphs write where they wrote before.
    return [g(x * scale, w).clone() for scale in (1, 2, 3)]


@case("compile")
def compile_default():
    return compiled()


@case("compile")
def compile_reduce_overhead():
    return compiled(mode="reduce-overhead")


@case("compile")
def compile_training():
    torch, net, x, at = classifier()
    torch._dynamo.reset()
    step = torch.compile(lambda: torch.nn.functional.cross_entropy(net(x), at))
    loss = step()
    loss.backward()
    return [loss, *(p.grad for p in net.parameters())]


@case("compile", TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS="ATEN,TRITON")
def compile_max_autotune():
    # Which kernel wins is up to the clock.
    return [(y * 100).round().sum() > 0 for y in compiled(mode="max-autotune-no-cudagraphs")]


@case("compile")
def flex_attention():
    torch = seeded()
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    q = rand(1, 4, 128, 64, dtype=torch.bfloat16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cuda")
    return [torch.compile(flex_attention)(q, q, q, block_mask=mask)]


TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    d = tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :]))
    tl.store(c + m[:, None] * N + n[None, :], d)

@triton.jit
def moved(source, target, M: tl.constexpr, N: tl.constexpr):
    target.store([0, N], source.load([0, 0]) * 2)

which = __import__("sys").argv[1]
torch.manual_seed(1)
if which == "add":
    x = torch.arange(10000.0, device="cuda"); z = torch.empty_like(x)
    add[(triton.cdiv(10000, 256),)](x, x, z, 10000, BLOCK=256); print(z.sum().item())
elif which == "dot":
    a = torch.rand(64, 64).cuda().half(); c = torch.empty(64, 64, device="cuda")
    product[(1,)](a, a, c, 64, 64, 64); print(c.double().sum().item())
else:
    from triton.tools.tensor_descriptor import TensorDescriptor
    x = torch.rand(64, 64).cuda(); y = torch.zeros(64, 128, device="cuda")
    moved[(1,)](TensorDescriptor.from_tensor(x, [32, 32]), TensorDescriptor.from_tensor(y, [32, 32]), 32, 32)
    print(y.sum().item(), (y[:32, 32:64] == x[:32, :32] * 2).all().item())
"""


@case("own")
def triton_add():
    return script(TRITON, "add")


@case("own")
def triton_tensor_cores():
    return script(TRITON, "dot")


@case("own")
def triton_bulk_copies():
    return script(TRITON, "descriptors")


@case("own")
def nvrtc_kernel():
    return script(
        """
import torch
kernel = torch.cuda._compile_kernel('extern "C" __global__ void twice(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }', "twice")
x = torch.arange(1000.0, device="cuda"); kernel(grid=(4, 1, 1), block=(256, 1, 1), args=[x, 1000]); print(x.sum().item())
"""
    )


# ---------------------------------------------------------------- PyTorch: libraries


@case("libraries")
def fft():
    torch = seeded()
    x = rand(64, 1000)
    return [torch.fft.rfft(x).real, torch.fft.fft2(x).imag, torch.fft.irfft(torch.fft.rfft(x)), torch.stft(x, 200, return_complex=True).abs()]


@case("libraries")
def linear_algebra():
    torch = seeded()
    a = rand(100, 100, dtype=torch.float64)
    s = a @ a.t() + 100 * torch.eye(100, device="cuda", dtype=torch.float64)
    la = torch.linalg
    return [la.cholesky(s), la.solve(s, a), la.inv(s), la.qr(a)[1].abs(), la.svdvals(a), la.eigvalsh(s), la.det(s), la.lu_factor(a)[0], la.lstsq(a, a[:, :3]).solution]


@case("libraries")
def sparse():
    torch = seeded()
    d = rand(200, 200)
    s = (d * (d > 0.9)).to_sparse_csr()
    return [s @ d, s.to_sparse_coo() @ d, (s @ s).to_dense()]


@case("own")
def profiler():
    return script(
        """
import torch
from torch.profiler import profile, ProfilerActivity
x = torch.rand(500, 500, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
    (x @ x).sum().item()
names = [event.key for event in p.key_averages()]
print("aten::mm" in names)
"""
    )


# ---------------------------------------------------------------- PyTorch: memory


@case("own")
def memory_is_the_devices():
    return script(
        """
import torch
free, total = torch.cuda.mem_get_info()
print(total >> 33, torch.cuda.get_device_properties(0).total_memory >> 33, free > 0)
a = torch.empty(20 << 30, dtype=torch.uint8, device="cuda"); b = torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
a[-1] = 1; b[-1] = 2; print(a[-1].item() + b[-1].item())
del a, b; torch.cuda.empty_cache()
c = torch.empty(60 << 30, dtype=torch.uint8, device="cuda"); c[-1] = 3; print(c[-1].item())
"""
    )


@case("own")
def memory_statistics():
    return script(
        """
import torch
x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()); del x
torch.cuda.empty_cache(); print(torch.cuda.memory_reserved())
"""
    )


@case("own")
def out_of_memory_is_caught():
    return script(
        """
import torch
try: torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error: print("1024.00 GiB" in str(error), "total capacity" in str(error))
print(torch.ones(10, device="cuda").sum().item())
"""
    )


@case("own", PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def expandable_segments():
    return script(
        """
import torch
kept = [torch.full((1 << (10 + at % 12),), float(at), device="cuda") for at in range(200)]
del kept[::2]; torch.cuda.empty_cache()
s = torch.cuda.Stream()
with torch.cuda.stream(s): y = torch.ones(1 << 24, device="cuda").sum()
s.synchronize(); print(sum(x[0].item() for x in kept), y.item())
"""
    )


@case("own", PYTORCH_ALLOC_CONF="backend:cudaMallocAsync", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
def async_allocator():
    return script(
        """
import torch
kept = [torch.full((1 << (10 + at % 12),), float(at), device="cuda") for at in range(200)]
del kept[::2]; torch.cuda.empty_cache()
print(sum(x[0].item() for x in kept))
"""
    )


@case("own")
def utilisation_and_temperature():
    return script(
        """
import torch
print(torch.cuda.utilization() >= 0, 0 < torch.cuda.temperature() < 120, torch.cuda.power_draw() > 0, torch.cuda.clock_rate() > 0)
"""
    )


@case("own", PYTORCH_NVML_BASED_CUDA_CHECK="1")
def devices_counted_by_nvml():
    return script("import torch; print(torch.cuda.is_available(), torch.cuda.device_count())")


# ---------------------------------------------------------------- models


@case("models")
def resnet_training():
    torch = seeded()
    import torchvision

    torch.backends.cudnn.deterministic = True
    net = torchvision.models.resnet18(num_classes=10).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, at = rand(8, 3, 64, 64).to(memory_format=torch.channels_last), torch.arange(8, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(x), at)
        loss.backward()
        optimizer.step()
    return [loss]


@case("models")
def vision_operators():
    torch = seeded()
    import torchvision

    boxes = rand(100, 4) * 50
    boxes[:, 2:] += boxes[:, :2] + 1
    return [torchvision.ops.nms(boxes, rand(100), 0.5), torchvision.ops.roi_align(rand(1, 3, 64, 64), [boxes[:5]], 7)]


@case("models")
def bert_training():
    torch = seeded()
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=500, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    net = BertForMaskedLM(config).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    at = torch.arange(4 * 32, device="cuda").view(4, 32) % 500
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(input_ids=at, labels=at).loss
        loss.backward()
        optimizer.step()
    return [loss]


@case("models")
def gpt_generating():
    torch = seeded()
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=500)).cuda().eval()
    return [net.generate(torch.arange(8, device="cuda").view(1, 8), max_new_tokens=24, do_sample=False, pad_token_id=0)]


@case("models")
def llama_bf16_generating():
    torch = seeded()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, vocab_size=500)
    net = LlamaForCausalLM(config).cuda().to(torch.bfloat16).eval()
    return [net.generate(torch.arange(8, device="cuda").view(1, 8), max_new_tokens=24, do_sample=False, pad_token_id=0)]


# ---------------------------------------------------------------- CuPy


def cupy_array(*shape):
    import cupy
    import numpy

    return cupy, cupy.asarray(numpy.random.default_rng(1).random(shape, dtype="float32"))


@case("cupy")
def cupy_elementwise():
    cp, x = cupy_array(1000, 100)
    return [x + 1, cp.exp(x), cp.where(x > 0.5, x, 0), x.astype("float16")]


@case("cupy")
def cupy_reductions_and_sorting():
    cp, x = cupy_array(1000, 100)
    return [x.sum(), x.sum(0), x.max(1), cp.sort(x, 1), cp.argsort(x[0]), cp.cumsum(x), cp.unique((x * 9).astype("i"))]


@case("cupy")
def cupy_products():
    cp, x = cupy_array(256, 256)
    return [x @ x, cp.einsum("ij,kj->ik", x, x), cp.dot(x[0], x[1])]


@case("cupy")
def cupy_linear_algebra():
    cp, x = cupy_array(64, 64)
    s = x @ x.T + 64 * cp.eye(64, dtype="f")
    return [cp.linalg.cholesky(s), cp.linalg.solve(s, x), cp.linalg.eigvalsh(s), cp.linalg.svd(s, compute_uv=False)]


@case("cupy")
def cupy_fft_random_sparse():
    cp, x = cupy_array(64, 64)
    import cupyx.scipy.sparse as sparse

    cp.random.seed(3)
    return [cp.fft.fft2(x).real, cp.random.rand(1000), sparse.csr_matrix(x * (x > 0.9)) @ x]


@case("cupy")
def cupy_raw_kernel():
    cp, x = cupy_array(1000)
    kernel = cp.RawKernel('extern "C" __global__ void twice(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }', "twice")
    kernel((4,), (250,), (x,))
    return [x]


@case("cupy")
def cupy_graph_and_streams():
    cp, x = cupy_array(1000)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        y = x * 2
        stream.begin_capture()
        y += x
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
    stream.synchronize()
    return [y]


# ---------------------------------------------------------------- JAX, Numba, cuda-python

# XLA times several kernels of a product and takes the fastest: which one that is may be another each time, and with it the
# last bits.
JAX = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}


def jax_numpy():
    import jax
    import jax.numpy as jnp

    if jax.devices()[0].platform != "gpu":
        raise RuntimeError(f"JAX computes on {jax.devices()}")
    return jax, jnp


@case("jax", **JAX)
def jax_jit_and_grad():
    jax, jnp = jax_numpy()
    x = jnp.arange(10000.0).reshape(100, 100) / 10000

    def loss(x):
        return jnp.tanh(x @ x).sum()

    return [jax.jit(loss)(x), jax.grad(loss)(x), jax.jit(jax.vmap(jnp.sort))(x)]


@case("jax", **JAX)
def jax_linear_algebra():
    jax, jnp = jax_numpy()
    x = jax.random.normal(jax.random.key(1), (64, 64))
    s = x @ x.T + 64 * jnp.eye(64)
    return [jnp.linalg.cholesky(s), jnp.linalg.solve(s, x), jnp.linalg.eigvalsh(s), jnp.linalg.svd(s, compute_uv=False), jnp.fft.fft(x).real]


@case("jax", **JAX)
def jax_convolution_bf16():
    jax, jnp = jax_numpy()
    x = jax.random.normal(jax.random.key(1), (4, 8, 16, 16), jnp.bfloat16)
    k = jax.random.normal(jax.random.key(2), (8, 8, 3, 3), jnp.bfloat16)
    return [jax.lax.conv(x, k, (1, 1), "SAME").astype(jnp.float32)]


@case("numba")
def numba_kernels():
    import numpy
    from numba import cuda

    @cuda.jit
    def twice(x):
        at = cuda.grid(1)
        if at < x.size:
            x[at] *= 2

    @cuda.reduce
    def total(a, b):
        return a + b

    x = cuda.to_device(numpy.arange(1000.0))
    twice[4, 256](x)
    return [x.copy_to_host(), total(x)]


@case("numba")
def numba_grid_synchronisation():
    import numpy
    from numba import cuda

    @cuda.jit
    def steps(x):
        grid = cuda.cg.this_grid()
        at = cuda.grid(1)
        for step in range(4):
            value = x[step, (at + 1) % x.shape[1]]
            grid.sync()
            x[step + 1, at] = value + 1
            grid.sync()

    x = cuda.to_device(numpy.arange(5 * 512.0).reshape(5, 512))
    steps[4, 128](x)
    return [x.copy_to_host()]


@case("cuda-python")
def cuda_core_program():
    import numpy
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    stream = device.create_stream()
    code = 'extern "C" __global__ void fill(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = 3 * threadIdx.x; }'
    major, minor = device.compute_capability
    kernel = Program(code, "c++", ProgramOptions(arch=f"sm_{major}{minor}")).compile("cubin").get_kernel("fill")
    buffer = device.allocate(4096, stream=stream)
    launch(stream, LaunchConfig(grid=4, block=256), kernel, buffer)
    stream.sync()
    from cuda.bindings import driver

    host = numpy.empty(1024, "i")
    driver.cuMemcpyDtoH(host.ctypes.data, int(buffer.handle), 4096)
    return [host]


# ---------------------------------------------------------------- two GPUs


def ranks(body):
    """Runs `body` as two ranks, a process and a GPU each, and returns what rank 0 prints."""
    return script(
        """
import os, socket, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, port):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(1)
    body(rank)
    dist.barrier()
    dist.destroy_process_group()

def body(rank):
"""
        + body
        + """
if __name__ == "__main__":
    if torch.cuda.device_count() < 2:
        sys.exit("this needs two GPUs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
"""
    )


@case("two")
def nccl_two_ranks():
    return ranks(
        """
    x = torch.rand(1 << 22, generator=torch.Generator().manual_seed(rank)).cuda()
    total = x.clone(); dist.all_reduce(total)
    parts = [torch.empty_like(x) for _ in range(2)]; dist.all_gather(parts, x)
    one = torch.empty(1 << 21, device="cuda"); dist.reduce_scatter_tensor(one, x)
    other = torch.empty_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]): work.wait()
    if rank == 0: print(*[part.double().sum().item().hex() for part in (total, *parts, one, other)])
"""
    )


@case("two")
def ddp_two_ranks():
    return ranks(
        """
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        x = torch.rand(64, 256, generator=torch.Generator().manual_seed(10 * step + rank)).cuda()
        optimizer.zero_grad(); loss = net(x).square().mean(); loss.backward(); optimizer.step()
    if rank == 0: print(loss.item().hex(), *[p.double().sum().item().hex() for p in net.parameters()])
"""
    )


@case("two")
def fsdp_two_ranks():
    return ranks(
        """
    from torch.distributed.fsdp import fully_shard
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(5):
        x = torch.rand(64, 256, generator=torch.Generator().manual_seed(10 * step + rank)).cuda()
        optimizer.zero_grad(); loss = net(x).square().mean(); loss.backward(); optimizer.step()
    if rank == 0: print(loss.item().hex())
"""
    )


@case("two")
def peer_copies():
    torch = seeded()
    if torch.cuda.device_count() < 2:
        raise RuntimeError("this needs two GPUs")
    x = rand(1 << 22)
    there = (x.to("cuda:1") * 2).to("cuda:0")
    return [there, (rand(512, 512).to("cuda:1") @ rand(512, 512).to("cuda:1")).cpu()]


@case("two", **JAX)
def jax_pmap_two():
    jax, jnp = jax_numpy()
    if len(jax.devices()) < 2:
        raise RuntimeError("this needs two GPUs")
    x = jnp.arange(2 * 4096.0).reshape(2, 4096)
    return [jax.pmap(lambda part: jax.lax.psum(jnp.sin(part), "i"), axis_name="i", devices=jax.devices()[:2])(x)]


# ----------------------------------------------------------------


def digest(results):
    """A digest of results' bytes."""
    total = hashlib.sha256()
    for result in results if isinstance(results, (list, tuple)) else [results]:
        if hasattr(result, "detach"):  # PyTorch
            import torch

            result = result.detach().cpu().contiguous().reshape(-1)
            data = bytes(result.view(torch.uint8).numpy()) if result.numel() else b""
        elif hasattr(result, "get") and hasattr(result, "dtype"):  # CuPy
            data = result.get().tobytes()
        elif hasattr(result, "__array__"):  # JAX, NumPy
            import numpy

            data = numpy.asarray(result).tobytes()
        else:
            data = repr(result).encode()
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:16]


def main():
    if sys.argv[1] == "--list":
        for name, (group, environment, _) in CASES.items():
            print(name, group, json.dumps(environment), sep="\t")
        return
    for name in sys.argv[2:]:
        begun = time.perf_counter()
        line = {"case": name}
        try:
            function = CASES[name][2]
            line["digest"] = digest(function())
            line["again"] = digest(function()) if CASES[name][0] != "own" else line["digest"]
        except BaseException as error:
            kind = type(error).__name__
            line["error"] = f"{kind}: {error}"[:600]
            line["trace"] = traceback.format_exc()[-3000:]
        line["seconds"] = round(time.perf_counter() - begun, 2)
        print("RESULT " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
