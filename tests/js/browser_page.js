// A page without a browser, for tests: happy-dom's window and what widgets ask of it.

import { Window } from "happy-dom";

const GLOBALS = [
  "CSS",
  "Document",
  "Element",
  "Event",
  "KeyboardEvent",
  "ResizeObserver",
  "document",
  "getComputedStyle",
  "matchMedia",
];
const METHODS = ["getComputedStyle", "matchMedia"]; // of the window

/** An observer who sees everything at once. */
class Seen {
  constructor(tell) {
    this.tell = tell;
  }

  observe() {
    this.tell([{ isIntersecting: true }]);
  }

  disconnect() {}
}

/** Makes an empty page the global one; returns the element in it that a widget is drawn into. */
export function openHost() {
  const page = new Window();
  for (const name of GLOBALS) {
    const value = page[name];
    globalThis[name] = METHODS.includes(name) ? value.bind(page) : value;
  }
  globalThis.IntersectionObserver = Seen;
  return document.body.appendChild(document.createElement("div"));
}

/** A model as anywidget gives it to a widget: values, listeners, and what was sent. */
export class Model {
  constructor(values) {
    this.values = values;
    this.listeners = new Map();
    this.sent = [];
    this.saved = [];
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    this.values[name] = value;
  }

  save_changes() {
    this.saved.push(structuredClone(this.values));
  }

  send(message) {
    this.sent.push(message);
  }

  on(events, listener) {
    for (const event of events.split(" ")) this.listeners.set(event, listener);
  }

  off(events) {
    for (const event of events.split(" ")) this.listeners.delete(event);
  }

  /** A value that Python sets. */
  change(name, value) {
    this.values[name] = value;
    this.listeners.get(`change:${name}`)?.();
  }
}

/** Presses a key where the focus is; returns whether the page kept its own reaction. */
export function press(key, options = {}) {
  const event = new KeyboardEvent("keydown", {
    key,
    bubbles: true,
    cancelable: true,
    ...options,
  });
  return document.activeElement.dispatchEvent(event);
}

/** Types a value into an input. */
export function type(input, value) {
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Turns a switch on. */
export function flip(input) {
  input.checked = true;
  type(input, input.value);
}
