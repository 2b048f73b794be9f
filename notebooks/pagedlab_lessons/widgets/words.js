// Numbers and words as all widgets write them.

/**
 * A number and what it counts: "1 block", "1,024 blocks".
 *
 * @param {number} n
 * @param {string} noun
 * @returns {string}
 */
export function plural(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

/**
 * A share as CSS writes it: "25%".
 *
 * @param {number} part
 * @param {number} whole
 * @returns {string}
 */
export function percent(part, whole) {
  return `${(100 * part) / whole}%`;
}
