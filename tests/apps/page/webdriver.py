"""A headless Chromium through chromedriver's WebDriver protocol; as much of it as the tests of the page need."""
import base64
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for references to elements
KEYS = {"enter": "\ue007", "escape": "\ue00c", "tab": "\ue004", "shift": "\ue008", "left": "\ue012", "right": "\ue014", "space": "\ue00d", "up": "\ue013",
        "down": "\ue015", "delete": "\ue017"}


def missing():
    """What is not installed, or None."""
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        return "chromium"
    return None if shutil.which("chromedriver") else "chromium-driver"


class Browser:
    def __init__(self, folder, width=1100, height=800, scale=1, flags=()):
        self.process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.session = None
        try:
            for line in self.process.stdout:
                if "started successfully on port" in line:
                    self.base = "http://127.0.0.1:" + line.split("port")[1].strip(" .\n")
                    break
            else:
                raise RuntimeError("chromedriver did not start")
            given = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server",
                     "--disable-background-networking", f"--window-size={width},{height}", f"--force-device-scale-factor={scale}",
                     f"--user-data-dir={os.path.join(folder, 'profile')}", *flags]
            options = {"binary": shutil.which("chromium") or shutil.which("google-chrome"), "args": given}
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
            self.session = answer["sessionId"]
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.session:
            try:
                self.call("DELETE", f"/session/{self.session}")
            except (OSError, RuntimeError):
                pass
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def call(self, method, path, body=None):
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(f"{path}: {json.load(error)['value']['message'].splitlines()[0]}") from None

    def do(self, method, path, body=None):
        return self.call(method, f"/session/{self.session}{path}", body)

    def go(self, address):
        self.do("POST", "/url", {"url": address})

    def js(self, script, *arguments):
        """The body of a function; promises are awaited."""
        return self.do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.do("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.do("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector, text):
        self.do("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *names):
        """Keys one after the other, on whatever has the focus; "shift+enter" holds the first."""
        steps = []
        for name in names:
            parts = [KEYS.get(part, part) for part in name.split("+")] if len(name) > 1 else [name]
            steps += [{"type": "keyDown", "value": part} for part in parts]
            steps += [{"type": "keyUp", "value": part} for part in reversed(parts)]
        self.do("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def count(self, selector):
        return self.js("return document.querySelectorAll(arguments[0]).length", selector)

    def until(self, script, *arguments, patience=20):
        """Waits until the script gives something true, and returns it."""
        end = time.monotonic() + patience
        while True:
            value = self.js(script, *arguments)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not within {patience} s: {script} {arguments}")
            time.sleep(0.02)

    def size(self, width, height):
        """Of the page itself; windows cannot be as narrow as telephones."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=0, mobile=False)

    def devtools(self, command, **parameters):
        return self.do("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.do("GET", "/screenshot")))

    def complaints(self):
        """What the browser's console got since the last call."""
        return [f"{entry['level']} {entry['message']}" for entry in self.do("POST", "/se/log", {"type": "browser"})
                if entry["level"] in ("SEVERE", "WARNING")]
