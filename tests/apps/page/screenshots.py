#!/usr/bin/env python3
"""Takes the screenshots of docs/page.md from a real answer. Arguments: the program, a text file, a question, the folder
for the images, flags for the server (for example --spec specextend)."""
import os
import subprocess
import sys
import tempfile
import threading
import time

import webdriver

PROGRAM, DOCUMENT, QUESTION, IMAGES = sys.argv[1:5]


def shoot(browser, port):
    browser.size(1100, 820)
    browser.go(f"http://127.0.0.1:{port}/")
    browser.until("return document.getElementById('model').textContent")
    browser.js("""for (const [name, value] of [["temperature", "0"], ["max-tokens", "220"]]) {
        const field = document.getElementById(name);
        field.value = value;
        field.dispatchEvent(new Event("input", {bubbles: true}));
    }""")
    browser.type("#files", os.path.abspath(DOCUMENT))
    browser.until("return document.querySelector('#chips .soft')?.textContent.includes('tokens')")
    browser.type("#message", QUESTION + webdriver.KEYS["enter"])
    browser.until("return document.querySelector('.answer').textContent.length > 700", patience=300)
    for scheme in ("light", "dark"):
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        time.sleep(0.1)
        browser.screenshot(os.path.join(IMAGES, f"page-{scheme}.png"))
    browser.until("return !document.documentElement.classList.contains('running')", patience=300)
    print(browser.text(".numbers"))


def main():
    command = [PROGRAM, "serve", "--port", "0", "-c", "8192", "--parallel", "1", *sys.argv[5:]]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = next(int(line.rsplit(":", 1)[1]) for line in server.stderr if line.startswith("listening on "))
        threading.Thread(target=server.stderr.read, daemon=True).start()
        with tempfile.TemporaryDirectory() as folder:
            browser = webdriver.Browser(folder)
            try:
                shoot(browser, port)
            finally:
                browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
