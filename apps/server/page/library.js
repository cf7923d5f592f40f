// The list of conversations: opens, deletes, exports and imports them. Beside the conversation where there is room, over it
// on a phone.
import {byId, bytes, count, make} from "./dom.js";
import {Conversation} from "./conversation.js";
import * as store from "./store.js";
import {download, fileName, readConversations, toJson, toMarkdown} from "./transfer.js";

const narrow = matchMedia("(max-width: 44rem)");

export class Library {
  // parts: chat, settings, announce(text), showProblem(text), focusBox()
  constructor(parts) {
    Object.assign(this, parts);
    this.drawer = false;  // whether the list is open on a phone
    this.chats = store.loadChats();
    this.doomed = null;   // what the dialog asks about
    const open = this.chats.find(({id}) => id === store.loadOpen());
    this.chat.open(open ?? new Conversation());
    this.listen();
    this.layOut();
    this.show();
  }

  listen() {
    byId("toggle-list").addEventListener("click", () => this.toggle());
    byId("shade").addEventListener("click", () => this.closeDrawer());
    narrow.addEventListener("change", () => this.layOut());
    byId("new-chat").addEventListener("click", () => this.open(new Conversation()));
    byId("ask-delete").addEventListener("close", () => this.decide(byId("ask-delete").returnValue === "delete"));
    byId("open-export").addEventListener("click", () => this.askExport());
    byId("export-markdown").addEventListener("click", () => this.export("md"));
    byId("export-json").addEventListener("click", () => this.export("json"));
    byId("export-all").addEventListener("click", () => this.export("all"));
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => {
      this.import([...event.target.files]);
      event.target.value = "";
    });
    byId("chats").addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("storage", ({key}) => store.isChatKey(key) && this.reload());
  }

  // Another tab changed something. What is open here stays as it is.
  reload() {
    const mine = this.chat.talk;
    this.chats = [...store.loadChats().filter(({id}) => id !== mine.id), ...(mine.messages.length ? [mine] : [])];
    this.show();
  }

  layOut() {
    const open = narrow.matches ? this.drawer : this.settings.list, over = narrow.matches && open;
    byId("list").hidden = !open;
    byId("shade").hidden = !over;
    byId("column").inert = over;
    byId("toggle-list").setAttribute("aria-expanded", open);
  }

  toggle() {
    if (narrow.matches) this.drawer = !this.drawer;
    else {
      this.settings.list = !this.settings.list;
      store.saveSettings(this.settings);
    }
    this.layOut();
    if (narrow.matches && this.drawer) (document.querySelector("#chats .open") ?? byId("open-export")).focus();
  }

  // Whether there was one to close.
  closeDrawer() {
    if (!narrow.matches || !this.drawer) return false;
    this.drawer = false;
    this.layOut();
    byId("toggle-list").focus();
    return true;
  }

  open(talk) {
    if (talk !== this.chat.talk) this.chat.open(talk);
    store.saveOpen(talk.messages.length ? talk.id : "");
    this.closeDrawer();
    this.show();
    if (!matchMedia("(pointer: coarse)").matches) this.focusBox();
  }

  keep(talk) {
    if (!talk.messages.length) return;
    if (!this.chats.includes(talk)) {
      if (talk !== this.chat.talk) return;  // deleted while its answer ended
      this.chats.push(talk);
    }
    const problem = store.saveChat(talk);
    if (this.chat.talk === talk) store.saveOpen(talk.id);
    if (problem && problem !== this.problem) this.announce(problem);
    this.problem = problem;
    this.show();
  }

  show() {
    this.chats.sort((a, b) => b.updated - a.updated);
    byId("chats").replaceChildren(...this.chats.map((talk) => {
      const title = talk.title(), shown = talk === this.chat.talk;
      return make("li", {class: shown ? "shown" : null},
        make("button", {type: "button", class: "open", "aria-current": shown ? "true" : null, title,
          onclick: () => this.open(talk)}, title),
        make("button", {type: "button", class: "delete", "aria-label": `Delete: ${title}`, title: "Delete",
          onclick: () => this.ask(talk)}, "×"));
    }));
    const used = store.usedCharacters(), full = used > 0.9 * store.storeLimit;
    const kept = `${count(this.chats.length)} kept in this browser, ${bytes(used)} of ${bytes(store.storeLimit)}`;
    byId("kept").textContent = this.problem || (this.chats.length ? kept : "Conversations are kept in this browser.");
    byId("kept").classList.toggle("bad", Boolean(this.problem) || full);
  }

  // Arrows go through the list, Delete asks to delete.
  key(event) {
    const step = {ArrowUp: -1, ArrowDown: 1}[event.key];
    const items = [...byId("chats").children], at = items.indexOf(event.target.closest("li"));
    if (step) {
      event.preventDefault();
      items[at + step]?.querySelector(".open").focus();
    } else if (event.key === "Delete") this.ask(this.chats[at]);
  }

  ask(talk) {
    this.doomed = talk;
    byId("doomed").textContent = talk.title();
    byId("ask-delete").returnValue = "";
    byId("ask-delete").showModal();
  }

  decide(yes) {
    if (!yes || !this.doomed) return;
    const at = this.chats.indexOf(this.doomed);
    store.removeChat(this.doomed.id);
    this.chats = this.chats.filter((talk) => talk !== this.doomed);
    this.problem = "";
    if (this.chat.talk === this.doomed) {
      this.chat.open(new Conversation());
      store.saveOpen("");
    }
    this.show();
    this.announce("Deleted.");
    const next = byId("chats").children[Math.min(at, this.chats.length - 1)];
    if (next) next.querySelector(".open").focus();
    else this.focusBox();
  }

  askExport() {
    const none = !this.chat.talk.messages.length;
    byId("export-markdown").disabled = byId("export-json").disabled = none;
    byId("export-all").disabled = !this.chats.length;
    byId("export").showModal();
  }

  export(what) {
    const {talk} = this.chat;
    if (what === "md") download(fileName(talk.title(), ".md"), toMarkdown(talk, this.chat.model), "text/markdown");
    else if (what === "json") download(fileName(talk.title(), ".json"), toJson([talk]), "application/json");
    else download("conversations.json", toJson(this.chats), "application/json");
  }

  async import(files) {
    let number = 0;
    for (const file of files) {
      try {
        const found = await readConversations(file, this.chats.map(({id}) => id));
        for (const talk of found) {
          const problem = store.saveChat(talk);
          if (problem) throw new Error(`${file.name}, “${talk.title()}”: ${problem}`);
          this.chats.push(talk);
          ++number;
        }
      } catch (error) {
        this.showProblem(error.message);
      }
    }
    this.show();
    this.announce(`${number} conversation${number === 1 ? "" : "s"} imported.`);
  }
}
