"""A browser, driven by the WebDriver protocol: so much of it as the test of the page needs."""

import base64
import http.client
import json
import subprocess
import time

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PATIENCE = 30


class Browser:
    """Chromium without a screen; `dark` is what it says of the user's taste."""

    def __init__(self, driver, port, width=1280, height=900):
        self.process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.port = port
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}"],
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        until("chromedriver answers", lambda: self.ask("GET", "/status")["ready"])
        session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{session['sessionId']}"

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        value = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(f"{value['error']}: {value['message']}")
        return value

    def command(self, method, path, body=None):
        return self.ask(method, self.session + path, body)

    def open(self, url):
        self.command("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """What a script in the page returns."""
        return self.command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        found = self.command("POST", "/element", {"using": "css selector", "value": selector})
        return found[ELEMENT]

    def click(self, selector):
        self.command("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self.command("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, key):
        """A key for whatever has the keyboard."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.command("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def colours(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def size(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def devtools(self, command, **parameters):
        return self.command("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.command("GET", "/screenshot")))

    def complaints(self):
        """What the browser wrote to its console since the last time."""
        lines = self.command("POST", "/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] in ("WARNING", "SEVERE")]

    def close(self):
        try:
            self.command("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(PATIENCE)


def until(what, is_so):
    """Waits until something is so, and gives what it gave."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            came = is_so()
        except (OSError, RuntimeError):
            came = None
        if came:
            return came
        if time.monotonic() > end:
            raise SystemExit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.1)
