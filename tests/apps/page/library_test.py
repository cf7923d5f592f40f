"""Conversations: the list, versions of messages, export and import; with the pointer, the keyboard and on a phone."""
import json
import os
import tempfile
import time

import webdriver
from mock_server import chunk, event, last_chunks, stream_of, tokens_chunk
from page_case import HOSTILE, PageTest, browser, mock, plays


TITLE = HOSTILE[:60] + "…"  # of a conversation that begins with that


def says(text):
    return plays(stream_of([chunk(text), *last_chunks()]))


def echo(request):
    """Answers with the last message, so that a test sees which branch was asked."""
    return iter([stream_of([chunk("re: " + request["messages"][-1]["content"]), *last_chunks()])])


class LibraryTest(PageTest):
    def titles(self):
        return browser.js("return [...document.querySelectorAll('#chats .open')].map((b) => b.textContent)")

    def bubbles(self):
        return browser.js("return [...document.querySelectorAll('.bubble')].map((b) => b.textContent)")

    def open(self, title):
        browser.js("[...document.querySelectorAll('#chats .open')].find((b) => b.textContent === arguments[0]).click()", title)

    def talks(self, *texts):
        for text in texts:
            self.new_chat()
            self.ask(text)
            time.sleep(0.01)  # their order is by milliseconds


class Conversations(LibraryTest):
    def test_list(self):
        mock.script = echo
        self.assertEqual(self.titles(), [])
        self.talks("one", HOSTILE, "w " * 100)
        self.assertEqual(self.titles(), [("w " * 30).strip() + " …", TITLE, "one"])
        self.open("one")
        self.assertEqual(self.bubbles(), ["one"])
        self.assertEqual(browser.text("#chats [aria-current]"), "one")
        self.ask("more", answers=2)
        self.assertEqual([m["content"] for m in mock.requests[-1]["messages"]], ["one", "re: one", "more"])
        self.assertEqual(self.titles()[0], "one")  # the last changed one is first
        self.load()
        self.assertEqual(self.bubbles(), ["one", "more"])  # what was open is open again
        self.assertEqual(len(self.titles()), 3)
        self.new_chat()
        self.load()
        self.assertEqual((self.bubbles(), len(self.titles())), ([], 3))
        self.assertRegex(browser.text("#kept"), r"^3 kept in this browser, [\d.]+ (bytes|KB) of 4.0 MB$")

    def test_delete_asks_first(self):
        self.talks("one", "two")
        for way in ("escape", "enter"):  # the way back is what Enter does
            browser.click("#chats .delete")
            self.assertEqual(browser.text("#doomed"), "two")
            browser.press(way)
            browser.until("return !document.getElementById('ask-delete').open")
            self.assertEqual(self.titles(), ["two", "one"])
        browser.click("#chats .delete")
        browser.click("#delete-chat")
        browser.until("return document.querySelectorAll('#chats li').length === 1")
        self.assertEqual((self.titles(), self.bubbles()), (["one"], []))
        self.load()
        self.assertEqual((self.titles(), len(self.kept())), (["one"], 1))

    def test_keyboard(self):
        self.talks("one", "two", "three")
        browser.js("document.querySelector('#chats .open').focus()")
        browser.press("down", "down", "up")
        self.assertEqual(browser.js("return document.activeElement.textContent"), "two")
        browser.press("enter")
        self.assertEqual(self.bubbles(), ["two"])
        self.assertEqual(browser.js("return document.activeElement.id"), "message")
        browser.js("document.querySelectorAll('#chats .open')[1].focus()")
        browser.press("delete", "tab", "enter")  # to the other button
        browser.until("return document.querySelectorAll('#chats li').length === 2")
        self.assertEqual(self.titles(), ["three", "one"])
        self.assertEqual(browser.js("return document.activeElement.textContent"), "one")

    def test_leaving_while_an_answer_arrives(self):
        mock.script = lambda request: (x for i in range(2000) for x in (event(chunk(f"w{i} ")), 0.01))
        self.send("long")
        browser.until("return document.querySelector('.answer')?.textContent.includes('w3 ')")
        self.new_chat()
        self.assertTrue(mock.broken.wait(10), "the stream was not closed")
        browser.until("return !document.documentElement.classList.contains('running')")
        self.assertEqual(browser.count("#messages > li"), 0)
        mock.script = says("Yes.")
        self.ask("other")
        self.open("long")
        self.assertTrue(browser.text(".answer").startswith("w0 w1 w2 w3 "))
        self.assertEqual(browser.text(".note"), "Stopped.")

    def test_bounds(self):
        """What does not fit is told, and nothing that was kept is lost for it."""
        self.ask("small")
        self.new_chat()
        self.ask("x")
        browser.js("localStorage.setItem('specextend.chat.filler', JSON.stringify({text: 'y'.repeat(3999000)}))")
        self.ask("z" * 3000, answers=2)
        self.assertRegex(browser.text("#kept"), r"^This conversation is not kept: the others have [\d,]+ of 4,000,000 characters\. Export and delete some\.$")
        self.assertEqual([k["messages"][0]["text"] for k in self.kept() if "messages" in k], ["small"])
        browser.js("localStorage.removeItem('specextend.chat.filler')")
        self.ask("again", answers=3)
        self.assertEqual(len(self.kept()), 2)

    def test_several_tabs(self):
        self.ask("mine")
        other = json.dumps({"id": "other", "leaf": 0, "updated": 5, "documents": [], "messages": [{"parent": -1, "role": "user", "text": "theirs", "files": []}]})
        browser.js("""localStorage.setItem("specextend.chat.other", arguments[0]);
            window.dispatchEvent(new StorageEvent("storage", {key: "specextend.chat.other"}));""", other)
        self.assertEqual((self.titles(), self.bubbles()), (["mine", "theirs"], ["mine"]))

    def test_phone(self):
        self.ask("one")
        browser.size(360, 640)
        self.load()
        self.assertEqual(browser.js("return document.getElementById('list').checkVisibility()"), False)
        browser.click("#toggle-list")
        self.assertEqual(browser.js("return [document.activeElement.textContent, document.getElementById('column').inert]"), ["one", True])
        browser.press("escape")
        self.assertEqual(browser.js("return [document.activeElement.id, document.getElementById('column').inert]"), ["toggle-list", False])
        browser.press("enter", "enter")
        self.assertEqual(browser.js("return document.getElementById('list').checkVisibility()"), False)
        self.assertEqual(self.bubbles(), ["one"])

    def test_list_can_be_closed(self):
        browser.click("#toggle-list")
        self.assertFalse(browser.js("return document.getElementById('list').checkVisibility()"))
        self.load()
        self.assertFalse(browser.js("return document.getElementById('list').checkVisibility()"))
        self.assertEqual(browser.js("return document.getElementById('toggle-list').getAttribute('aria-expanded')"), "false")


class Versions(LibraryTest):
    def edit(self, text, number=0):
        browser.js("document.querySelectorAll('.edit')[arguments[0]].click(); document.querySelector('.editor textarea').value = ''", number)
        browser.type(".editor textarea", text + webdriver.KEYS["enter"])

    def answers(self):
        return browser.js("return [...document.querySelectorAll('.answer')].map((a) => a.textContent)")

    def test_edit_and_branch(self):
        mock.script = echo
        self.drop("a.txt", "words")
        browser.until("return document.querySelector('#chips .name')")
        self.ask("one")
        self.ask("two", answers=2)
        self.edit("uno")
        self.finished(1)
        document = "a.txt:\n\nwords\n\n"
        self.assertEqual([m["content"] for m in mock.requests[-1]["messages"]], [document + "uno"])
        self.assertEqual(self.bubbles(), ["uno"])
        self.assertEqual(browser.js("return document.querySelector('.versions').getAttribute('aria-label')"), "Version 2 of 2")
        browser.click(".previous")
        self.assertEqual(self.bubbles(), ["one", "two"])
        self.edit("deux", 1)
        self.finished(2)
        self.assertEqual([m["content"] for m in mock.requests[-1]["messages"]], [document + "one", f"re: {document}one", "deux"])
        self.load()
        self.assertEqual(self.bubbles(), ["one", "deux"])
        browser.js("document.querySelector('.following').focus()")
        browser.press("enter")  # with the keyboard; the focus stays with the versions
        self.assertEqual(self.bubbles(), ["uno"])
        self.assertEqual(browser.js("return document.activeElement.className"), "small previous")
        browser.press("enter")
        self.assertEqual(self.bubbles(), ["one", "deux"])  # the newest of what follows
        self.assertEqual(len(self.kept()[0]["documents"]), 1)  # the document is kept once

    def test_edit_can_be_left(self):
        self.ask("one")
        browser.click(".edit")
        self.assertEqual(browser.js("return [document.activeElement.value, document.querySelector('.bubble').hidden]"), ["one", True])
        browser.press("x", "escape")
        self.assertEqual(browser.js("return [document.activeElement.className, document.querySelector('.bubble').hidden]"), ["small edit", False])
        browser.click(".edit")
        browser.click(".cancel-edit")
        self.assertEqual((self.bubbles(), len(mock.requests), browser.count(".editor")), (["one"], 1, 0))

    def test_answers_have_versions(self):
        self.ask("one")
        mock.script = says("No.")
        browser.click(".regenerate")
        browser.until("return document.querySelector('.answer')?.textContent === 'No.'")
        self.finished()
        browser.click(".assistant .previous")
        self.assertEqual(self.answers(), ["Yes."])
        self.ask("more", answers=2)
        self.assertEqual([m["content"] for m in mock.requests[-1]["messages"]], ["one", "Yes.", "more"])
        browser.click(".assistant .following")
        self.assertEqual(self.answers(), ["No."])


class Transfer(LibraryTest):
    def saved(self, button):
        """The file as the browser saves it."""
        with tempfile.TemporaryDirectory() as folder:
            browser.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
            browser.click("#open-export")
            browser.click(button)
            end = time.monotonic() + 20
            while not (found := [n for n in os.listdir(folder) if not n.endswith(".crdownload") and not n.startswith(".")]):
                self.assertLess(time.monotonic(), end, "nothing was saved")
                time.sleep(0.05)
            with open(os.path.join(folder, found[0]), encoding="utf-8") as file:
                return found[0], file.read()

    def give(self, text, name="conversations.json"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            browser.js("document.getElementById('status').textContent = ''")
            browser.type("#import-file", path)
            return browser.until("return document.getElementById('status').textContent")

    def test_markdown(self):
        mock.script = says("**Yes**, `it` is.")
        self.drop("a.txt", "some words")
        browser.until("return document.querySelector('#chips .soft')?.textContent.includes('tokens')")
        self.ask("Is it / blue?")
        name, text = self.saved("#export-markdown")
        self.assertEqual(name, "Is-it-blue.md")
        self.assertEqual(text.split("\n\n")[:6], ["# Is it / blue?", "Model: tiny", "## Question", "Attached: a.txt (10 bytes, 2 tokens)", "Is it / blue?",
                                                  "## Answer"])
        self.assertIn("\n\n**Yes**, `it` is.\n\n(10 tokens in 100 ms", text)

    def test_json_comes_back(self):
        mock.script = plays(stream_of([tokens_chunk([("A", 0), ("bc", 1)]), *last_chunks()]))
        self.drop("a.txt", "some words")
        browser.until("return document.querySelector('#chips .name')")
        self.ask(HOSTILE)
        browser.click(".regenerate")
        browser.until("return document.querySelector('.versions')")
        self.finished()
        self.new_chat()
        self.ask("two")
        kept = self.kept()
        name, text = self.saved("#export-all")
        self.assertEqual((name, json.loads(text)["conversations"]), ("conversations.json", kept))
        browser.js("localStorage.clear(); sessionStorage.clear()")
        self.load()
        self.assertEqual(self.titles(), [])
        self.assertEqual(self.give(text), "2 conversations imported.")
        self.assertEqual(self.kept(), kept)
        self.assertEqual(self.titles(), ["two", TITLE])
        self.assertEqual(self.give(text), "2 conversations imported.")  # beside those that are there
        self.assertEqual(len(self.titles()), 4)
        self.open(TITLE)
        self.assertEqual([browser.text(".bubble"), browser.text(".answer .d1"), browser.text(".user .name")], [HOSTILE, "bc", "a.txt"])
        one = json.loads(self.saved("#export-json")[1])
        self.assertEqual([c["title"] for c in one["conversations"]], [TITLE])

    def test_files_that_are_none(self):
        good = {"format": "specextend-conversations", "version": 1, "conversations": []}
        for text, problem in (("{", "is not JSON."), ("[1]", "has no conversations of this page."), (json.dumps({**good, "version": 9}),
                              "is of version 9; this page reads version 1."), (json.dumps({**good, "conversations": [{"messages": 3}]}),
                              "conversation 1 is damaged. Nothing was imported.")):
            self.assertEqual(self.give(text, "bad.json"), "0 conversations imported.")
            self.assertIn(problem, browser.js("return document.querySelector('#chips .chip:last-child').textContent"))
        self.assertEqual(self.titles(), [])

    def test_nothing_to_export(self):
        browser.click("#open-export")
        self.assertEqual(browser.js("return [...document.querySelectorAll('#export button')].map((b) => b.disabled)"), [True, True, True, False])
        browser.press("escape")
        browser.until("return !document.getElementById('export').open")
