// A model for explore.js where there is no Python: it answers from a list of stored drawings.

/** @import { Control, Value } from "./explore.js" */

/**
 * What a notebook stores of a drawing with controls, see opening.py.
 *
 * @typedef {object} StoredDrawing
 * @property {string} caption
 * @property {Control[]} controls those that are not `fixed` have a drawing for each of their values
 * @property {Record<string, Value>} at what the controls show first
 * @property {string[]} parts of which the drawings are made
 * @property {number[][]} frames runs of parts: first, length, first, length ...
 * @property {number[]} order the frame of each combination of values; the last control's value
 *   changes fastest
 */

/**
 * Answers at once what explore.js asks: a map of what a model holds, by name.
 *
 * @extends {Map<string, any>}
 */
export class FrameModel extends Map {
  onDrawn = () => {};

  /** @param {StoredDrawing} stored */
  constructor(stored) {
    super(Object.entries({ ...stored, asked: { number: 0, at: stored.at } }));
    this.save_changes();
  }

  save_changes() {
    const { number, at } = this.get("asked");
    this.set("drawn", { number, html: this.drawing(at) });
    this.onDrawn();
  }

  /**
   * @param {string} event
   * @param {() => void} listener
   */
  on(event, listener) {
    if (event === "change:drawn") this.onDrawn = listener;
  }

  off() {}

  /**
   * The drawing for these values.
   *
   * @param {Record<string, Value>} at
   * @returns {string}
   */
  drawing(at) {
    const parts = this.get("parts");
    let place = 0;
    for (const { name, kind, options, fixed } of this.get("controls")) {
      if (fixed) continue;
      const numValues = kind === "switch" ? 2 : options.length;
      place = place * numValues + Number(at[name]);
    }
    const runs = this.get("frames")[this.get("order")[place]];
    let drawing = "";
    for (let i = 0; i < runs.length; i += 2) {
      drawing += parts.slice(runs[i], runs[i] + runs[i + 1]).join("");
    }
    return drawing;
  }
}
