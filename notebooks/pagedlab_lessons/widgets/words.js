// Numbers and words as all widgets write them.

const english = new Intl.NumberFormat("en"); // to make one takes longer than to use it

/**
 * A number with its thousands apart: 1,024.
 *
 * @param {number} n
 * @returns {string}
 */
export function format(n) {
  return english.format(n);
}

/**
 * A number and what it counts: "1 block", "1,024 blocks".
 *
 * @param {number} n
 * @param {string} noun
 * @returns {string}
 */
export function plural(n, noun) {
  return `${format(n)} ${noun}${n === 1 ? "" : "s"}`;
}
