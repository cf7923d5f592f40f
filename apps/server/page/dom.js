// Helpers for the document. Text only ever becomes text nodes: nothing in this page is made from markup.

export const byId = (id) => document.getElementById(id);

// make("li", {class: "chip", title: name}, "text", node): values of properties that begin with "on" are listeners.
export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// `button` is what was pressed: it has the focus again afterwards.
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // pages that did not come over a safe connection have no clipboard
    const box = document.body.appendChild(make("textarea", {class: "out-of-sight"}));
    box.value = text;
    box.select();
    document.execCommand("copy");
    box.remove();
    button.focus();
  }
}

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
export const count = (n) => whole.format(n);
export const fixed = (n, digits) => (Number.isFinite(n) ? n.toFixed(digits) : "–");

export function bytes(n) {
  if (n < 1000) return `${n} bytes`;
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} KB`;
  return `${(n / 1e6).toFixed(1)} MB`;
}

export function seconds(ms) {
  if (ms < 950) return `${Math.round(ms)} ms`;
  if (ms < 59500) return `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

// Calls `action` at most once per frame, with no frame lost at the end. A hidden page has no frames: it catches up later.
export function oncePerFrame(action) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame((now) => {
      asked = false;
      action(now);
    });
  };
}

// A canvas as large as it is shown, in device pixels; draws in CSS pixels.
export function fit(canvas) {
  const box = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(box.width * ratio), height = Math.round(box.height * ratio);
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, box.width, box.height);
  return {pen, width: box.width, height: box.height};
}

// The style's colours for canvases: light-dark() is resolved by a real property only.
export function colour(name) {
  const probe = colour.probe ?? (colour.probe = document.body.appendChild(make("i", {hidden: true})));
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
