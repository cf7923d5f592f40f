// Server-sent events out of text that arrives in pieces cut anywhere.

export class EventParser {
  // onEvent(data, name): the joined data lines, and the event's name ("message" where it has none).
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.rest = "";
    this.data = [];
    this.name = "";
  }

  push(text) {
    this.rest += text;
    // A carriage return at the very end may be half of a line end.
    const whole = this.rest.endsWith("\r") ? this.rest.length - 1 : this.rest.length;
    const ends = /\r\n|\n|\r/g;
    let from = 0;
    for (let end = ends.exec(this.rest); end && end.index < whole; end = ends.exec(this.rest)) {
      this.line(this.rest.slice(from, end.index));
      from = ends.lastIndex;
    }
    if (from) this.rest = this.rest.slice(from);
  }

  line(line) {
    if (line === "") {
      if (this.data.length) this.onEvent(this.data.join("\n"), this.name || "message");
      this.data = [];
      this.name = "";
    } else {  // a comment is a field without a name
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      let value = colon < 0 ? "" : line.slice(colon + 1);
      if (value[0] === " ") value = value.slice(1);
      if (field === "data") this.data.push(value);
      else if (field === "event") this.name = value;
    }
  }
}
