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
