"""The page of `openmps page` in a real browser: `page.py OPENMPS CLIENT PICTURES`.

Starts a daemon, clients and the page, looks and works with the keyboard as a person would, and leaves pictures to be looked at.
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from webdriver import Browser, until

OPENMPS, CLIENT, PICTURES = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m"
MANY = 100
TAB, ENTER, ESCAPE, RIGHT, DOWN = "\ue004", "\ue007", "\ue00c", "\ue014", "\ue015"

started = []


def start(words, **more):
    process = subprocess.Popen([str(word) for word in words], **more)
    started.append(process)
    return process


def client(mode, program=CLIENT):
    return start([OPENMPS, "run", "--", program, mode], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def told(*words):
    return subprocess.run([OPENMPS, *words], check=True, capture_output=True, text=True).stdout


def check(is_so, what):
    if not is_so:
        raise SystemExit(f"not so: {what}")
    print(f"  {what}")


def free_port():
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return there.getsockname()[1]


def rows(browser):
    return browser.run("return [...document.querySelectorAll('#table tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))")


def text(browser, selector):
    return browser.run("return document.querySelector(arguments[0]).textContent", selector)


def focused(browser):
    return browser.run("const it = document.activeElement; return it.id || it.textContent.trim()")


def pictures(browser, name):
    for scheme in ("light", "dark"):
        browser.colours(scheme)
        browser.picture(PICTURES / f"{name}-{scheme}.png")
    browser.colours("light")


def names_of_controls(browser):
    """What a screen reader is told of everything that takes the keyboard."""
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    for node in nodes:
        takes_keys = any(it["name"] == "focusable" and it["value"]["value"] for it in node.get("properties", []))
        if takes_keys and not node.get("ignored") and node["role"]["value"] != "RootWebArea":
            yield node["role"]["value"], node.get("name", {}).get("value", "")


def a_few(browser, url):
    for _ in range(3):
        client("work")
    browser.open(url)
    until("three clients with work", lambda: sum(1 for row in rows(browser) if row[3].strip() not in ("0", "")) == 3)
    check(browser.run("return location.hash") == "", "the token is not in the address any more")
    time.sleep(8)
    pictures(browser, "few")
    nameless = [role for role, name in names_of_controls(browser) if not name]
    check(not nameless, f"all controls have names {nameless}")
    return rows(browser)[0][1]


def by_keyboard(browser, url):
    browser.open(url)
    until("clients", lambda: len(rows(browser)) == 3)
    browser.press(TAB)
    check(focused(browser) == "Skip to the clients", "the first key leads past the top")
    browser.press(ENTER)
    browser.press(TAB)
    check(focused(browser) == "filter", "to the clients")
    until("the head of the table has the keyboard", lambda: browser.press(TAB) or focused(browser) == "PID")
    browser.press(ENTER)
    sorts = "return document.querySelector('#table thead [aria-sort]').textContent"
    check(browser.run(sorts) == "PID", "Enter sorts by a column")
    pids = [int(row[1]) for row in rows(browser)]
    check(pids == sorted(pids, reverse=True), "and the rows are sorted")
    until("a row has the keyboard", lambda: browser.press(TAB) or focused(browser) == "client")
    place = "return document.activeElement.closest('tr').rowIndex"
    row = browser.run(place)
    time.sleep(3)
    check(browser.run(place) == row, "it keeps it while figures change")
    browser.press(ENTER)
    check(browser.run("return document.getElementById('detail').open"), "Enter opens a client")
    until("its limits", lambda: browser.run("return document.getElementById('percentage').value") == "100")
    until("the slider has the keyboard", lambda: browser.press(TAB) or focused(browser) == "slider")
    for _ in range(3):
        browser.press("\ue012")
    until("the button", lambda: browser.press(TAB) or focused(browser) == "Set")
    browser.press(ENTER)
    until("it was set", lambda: text(browser, "#said") == "It has 97 % of the multiprocessors now.")
    pid = re.search(r"\((\d+)\)", text(browser, "#detail-title"))[1]
    check("compute: 97.0 %" in told("limit", "show", "--client", pid), "the daemon says the same")
    time.sleep(3)
    pictures(browser, "client")
    browser.press(ESCAPE)
    check(not browser.run("return document.getElementById('detail').open"), "Escape closes it")
    check(focused(browser) == "client", "and the keyboard is where it was")


def a_time_line(browser, url):
    browser.open("about:blank")
    browser.open(url)
    until("clients", lambda: len(rows(browser)) == 3)
    browser.click("#record")
    until("it records", lambda: "recording" in text(browser, "#timeline-state"))
    check(browser.run("return document.getElementById('record').disabled"), "one at a time")
    tracks = "return [...document.querySelectorAll('.track')].map(it => it.textContent)"
    until("it is drawn", lambda: len(browser.run(tracks)) >= 3)
    check(browser.run("return document.querySelectorAll('.track path').length") >= 3, "each stream has what it did")
    lines = browser.run("return [...document.querySelectorAll('#timeline-table tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))")
    check(all("client (" in line[0] and int(line[2]) > 0 for line in lines), "the table has the sums")
    check(any("waited" in line[1] for line in lines), "and who waited")
    browser.run("document.getElementById('timeline-rows').focus()")
    browser.press(RIGHT)
    first = text(browser, "#timeline-said")
    check("stream" in first and "from" in first, f"the keyboard tells of one: {first}")
    browser.press(RIGHT)
    check(text(browser, "#timeline-said") != first, "and of the next")
    browser.press(DOWN)
    check("stream" in text(browser, "#timeline-said"), "and of another stream's")
    axis = "return document.getElementById('timeline-axis').textContent"
    whole = browser.run(axis)
    for _ in range(4):
        browser.press("+")
    check(browser.run(axis) != whole, "plus shows less of the time")
    browser.run("document.getElementById('timeline').scrollIntoView()")
    time.sleep(1)
    pictures(browser, "timeline-near")
    browser.press("0")
    check(browser.run(axis) == whole, "0 shows all")
    pictures(browser, "timeline")
    nameless = [role for role, name in names_of_controls(browser) if not name]
    check(not nameless, f"all controls have names {nameless}")


def tokens(browser, url):
    browser.open(url.split("#")[0])
    browser.run("sessionStorage.clear()")
    browser.open(url.split("#")[0])
    until("clients", lambda: len(rows(browser)) == 3)
    browser.click("#table tbody button")
    check(browser.run("return !document.getElementById('needs-token').hidden"), "without a token the page says what is needed")
    browser.click("#close")
    browser.type("#token", "wrong-wrong-wrong\n")
    browser.click("#table tbody button")
    until("it is refused", lambda: text(browser, "#said") == "the token is wrong")
    browser.click("#close")
    # The browser itself tells of answers with such a status.
    refusals = [line for line in browser.complaints() if "403" not in line]
    check(not refusals, f"nothing else is complained about {refusals}")


def an_end(browser, url):
    browser.open("about:blank")
    browser.open(url)
    until("clients", lambda: len(rows(browser)) == 3)
    browser.click("#table tbody button")
    until("its limits", lambda: browser.run("return document.getElementById('percentage').value"))
    browser.click("#end")
    time.sleep(1)
    check(len(rows(browser)) == 3, "one click ends nobody")
    browser.click("#end")
    until("it was ended", lambda: text(browser, "#said") == "It was ended.")
    until("two clients", lambda: len(rows(browser)) == 2)
    check(browser.run("return !document.getElementById('left').hidden"), "its panel says that it has left")
    browser.click("#close")


def hostile(browser, folder):
    program = folder / HOSTILE
    shutil.copy(CLIENT, program)
    client("work", program)
    until("it is there", lambda: any("<img src=x" in row[0] for row in rows(browser)))
    check(browser.run("return document.images.length") == 0, "its name is text")
    shown = next(row[0] for row in rows(browser) if "<img" in row[0])
    check("\x1b" not in shown and "\u202e" not in shown, "without control characters")
    client("fault").wait()
    until("its fault is marked", lambda: "fatal GPU error" in browser.run("return [...document.querySelectorAll('#log .trouble')].map(it => it.textContent).join()"))


def many(browser):
    for number in range(MANY):
        client("work" if number % 10 == 0 else "idle")
    until(f"{MANY + 3} clients", lambda: len(rows(browser)) == MANY + 3)
    browser.run("scrollTo(0, 0)")
    cells = "return document.querySelectorAll('#waits tbody td').length"
    until("a matrix of those who wait", lambda: browser.run(cells) >= 100)
    browser.size(1280, 1900)
    time.sleep(4)
    pictures(browser, "many")
    browser.size(400, 850)
    time.sleep(2)
    pictures(browser, "narrow")
    wider = browser.run("return document.documentElement.scrollWidth - innerWidth")
    check(wider <= 0, "on a narrow screen nothing sticks out")
    browser.size(1280, 900)
    browser.type("#filter", "img src")
    check(len(rows(browser)) == 1, "a filter leaves the one")


def main():
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="page") as name:
        folder = pathlib.Path(name)
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": f"{name}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{name}/log", "HOME": name, "OPENMPS_ENGINE": "soft"}
        start([OPENMPS, "control", "-f"], stdout=subprocess.DEVNULL)
        until("the daemon", lambda: subprocess.run([OPENMPS, "control", "get_server_list"], capture_output=True).returncode == 0)
        page = start([OPENMPS, "page", "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        page.stderr.readline()
        url = page.stderr.readline().split(": ")[-1].strip()
        browser = Browser(shutil.which("chromedriver"), free_port())
        try:
            a_few(browser, url)
            by_keyboard(browser, url.split("#")[0])
            a_time_line(browser, url)
            check(not browser.complaints(), "the browser has nothing to complain of")
            tokens(browser, url)
            an_end(browser, url)
            hostile(browser, folder)
            many(browser)
            browser.open("about:blank")
            browser.open(url)
            until("it is live", lambda: text(browser, "#status") == "live")
            told("control", "quit", "-t", "1")
            until("the page says that the daemon is gone", lambda: "Cannot find MPS control daemon" in text(browser, "#status"))
            check(not browser.complaints(), "the browser has nothing to complain of")
        finally:
            browser.close()
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait()


main()
