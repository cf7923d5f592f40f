// Colours for code: a scanner for comments, strings, numbers, words and calls that serves most languages. It reads a line
// at a time and hands on what a line leaves open, so that an answer that still arrives is coloured too.

const words = (text) => new Set(text.trim().split(/\s+/));
const C_LIKE = {line: ["//"], block: [["/*", "*/"]], strings: ["\"", "'"]};
const HASH = {line: ["#"], block: [], strings: ["\"", "'"]};

const LANGUAGES = {
  c: {...C_LIKE, keywords: words(`
    alignas alignof auto bool break case catch char class co_await co_return co_yield concept const consteval
    constexpr continue decltype default delete do double else enum explicit export extern false float for friend
    goto if inline int long mutable namespace new noexcept nullptr operator private protected public register
    requires return short signed sizeof static struct switch template this throw true try typedef typename union
    unsigned using virtual void volatile wchar_t while __global__ __device__ __shared__ __host__ size_t include
    define ifdef ifndef endif pragma`)},
  java: {...C_LIKE, keywords: words(`
    abstract as async await base bool boolean break byte case catch char class const continue default do double else
    enum extends false final finally float for foreach fun if implements import in instanceof int interface internal
    is long namespace new null object override package private protected public readonly record ref return sealed
    short static string struct super switch this throw throws true try typeof using val var virtual void volatile
    when where while yield`)},
  js: {...C_LIKE, multi: ["`"], keywords: words(`
    abstract any as async await boolean break case catch class const continue debugger declare default delete do
    else enum export extends false finally for from function get if implements import in instanceof interface keyof
    let namespace never new null number of private protected public readonly return set static string super switch
    this throw true try type typeof undefined unknown var void while with yield`)},
  go: {...C_LIKE, multi: ["`"], keywords: words(`
    any bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto
    if import int int64 interface map nil package range return rune select string struct switch true type var`)},
  rust: {line: ["//"], block: [["/*", "*/"]], strings: ["\""], keywords: words(`
    as async await bool break char const continue crate dyn else enum extern false f32 f64 fn for i32 i64 if impl in
    let loop match mod move mut pub ref return self Self static str String struct super trait true type u8 u32 u64
    unsafe use usize where while`)},
  python: {...HASH, multi: ["\"\"\"", "'''"], keywords: words(`
    and as assert async await break case class continue def del elif else except False finally for from global if
    import in is lambda match None nonlocal not or pass raise return self True try while with yield`)},
  ruby: {...HASH, keywords: words(`
    alias and begin break case class def do else elsif end ensure false for if in module next nil not or raise redo
    require rescue retry return self super then true undef unless until when while yield`)},
  shell: {...HASH, keywords: words(`
    break case cd continue do done echo elif else esac eval exec exit export fi for function if in local return set
    shift source test then trap unset until while`)},
  sql: {line: ["--"], block: [["/*", "*/"]], strings: ["'", "\""], fold: true, keywords: words(`
    add all alter and as asc between by case column create database default delete desc distinct drop else end
    exists false foreign from full group having in index inner insert into is join key left like limit not null
    offset on or order outer primary references right select set table then true union unique update values view
    when where with`)},
  lua: {line: ["--"], block: [["--[[", "]]"]], strings: ["\"", "'"], keywords: words(`
    and break do else elseif end false for function goto if in local nil not or repeat return then true until while`)},
  php: {line: ["//", "#"], block: [["/*", "*/"]], strings: ["\"", "'"], keywords: words(`
    abstract array as break case catch class const continue default do echo else elseif extends false final finally
    fn for foreach function global if implements include interface namespace new null private protected public
    require return static switch this throw true try use var while`)},
  markup: {line: [], block: [["<!--", "-->"]], strings: ["\"", "'"], tags: true, keywords: words("")},
  css: {line: [], block: [["/*", "*/"]], strings: ["\"", "'"], keywords: words(`
    important media supports keyframes import root hover focus auto none inherit initial`)},
  data: {...HASH, keywords: words(`
    true false null yes no on off`)},
  json: {line: [], block: [], strings: ["\""], keywords: words(`
    true false null`)},
};
const ALIASES = {
  c: "cpp c++ cc h hpp cu cuda objc glsl proto arduino",
  java: "kotlin kt scala cs csharp c# swift dart groovy",
  js: "javascript jsx ts tsx typescript mjs node",
  go: "golang",
  rust: "rs",
  python: "py python3 py3 pyi",
  ruby: "rb",
  shell: "sh bash zsh console powershell dockerfile make makefile cmake fish",
  sql: "mysql postgresql sqlite",
  lua: "",
  php: "",
  markup: "html xml svg vue xhtml",
  css: "scss less",
  data: "yaml yml toml ini conf properties",
  json: "json5 jsonc",
};
const NAMES = new Map(Object.entries(ALIASES).flatMap(([name, others]) =>
  [name, ...others.split(" ").filter(Boolean)].map((alias) => [alias, name])));

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
function scannerOf(language) {
  if (language.scanner) return language.scanner;
  const group = (list) => (list.length ? list.map(escaped).join("|") : "(?!)");
  const {block, line, multi = [], strings, tags} = language, word = "[\\p{L}_$@][\\p{L}\\p{N}_$-]*";
  const kinds = [group(block.map(([open]) => open)), group(line), group(multi), group(strings), "\\d[\\w.]*",
    tags ? `<\\/?[\\w-]+|${word}` : word];
  language.scanner = new RegExp(kinds.map((kind) => `(${kind})`).join("|"), "gu");
  return language.scanner;
}

export const languageOf = (info) => NAMES.get(/^[^\s{,]*/.exec(info)[0].toLowerCase()) ?? (info === "diff" ? "diff" : "");

// Where a string that was open at `from` ends (after its closing sign), or -1.
function endOf(text, closer, from) {
  for (let at = from; at < text.length; ++at) {
    if (text[at] === "\\") ++at;
    else if (text.startsWith(closer, at)) return at + closer.length;
  }
  return -1;
}

// Colours a line: {spans: [[from, to, class]], open: what the next line begins in, or null}.
export function colourLine(name, text, open = null) {
  if (name === "diff") {
    const kind = {"+": "t-s", "-": "t-k", "@": "t-f"}[text[0]];
    return {spans: kind ? [[0, text.length, kind]] : [], open: null};
  }
  const language = LANGUAGES[name], spans = [];
  if (!language) return {spans, open: null};
  let at = 0, apostrophe = false;
  if (open) {
    const end = open.kind === "t-c" ? text.indexOf(open.closer) : endOf(text, open.closer, 0);
    if (end < 0) return {spans: text ? [[0, text.length, open.kind]] : [], open};
    at = open.kind === "t-c" ? end + open.closer.length : end;
    spans.push([0, at, open.kind]);
  }
  const scanner = scannerOf(language);
  scanner.lastIndex = at;
  for (let found = scanner.exec(text); found; found = scanner.exec(text)) {
    const from = found.index, [whole, block, line, multi, string, number, word] = found;
    let end = from + whole.length, kind = "";
    if (line !== undefined) {
      spans.push([from, text.length, "t-c"]);
      return {spans, open: null};
    }
    if (block !== undefined || multi !== undefined) {
      const closer = multi ?? language.block.find(([opener]) => opener === block)[1];
      kind = multi === undefined ? "t-c" : "t-s";
      const found = kind === "t-c" ? text.indexOf(closer, end) : endOf(text, closer, end);
      if (found < 0) {
        spans.push([from, text.length, kind]);
        return {spans, open: {kind, closer}};
      }
      end = kind === "t-c" ? found + closer.length : found;
    } else if (string !== undefined) {
      const close = apostrophe && string === "'" ? -1 : endOf(text, string, end);
      if (close < 0 && string === "'") {  // an apostrophe, or a lifetime; the rest of the line closes none
        apostrophe = true;
        continue;
      }
      kind = "t-s";
      end = close < 0 ? text.length : close;
    } else if (number !== undefined) kind = "t-n";
    else if (language.tags) kind = word[0] === "<" ? "t-k" : "";
    else if (language.keywords.has(language.fold ? word.toLowerCase() : word)) kind = "t-k";
    else if (text[end] === "(") kind = "t-f";
    if (kind) spans.push([from, end, kind]);
    scanner.lastIndex = end;
  }
  return {spans, open: null};
}
