// What a chat template adds to a prompt: roles, line ends, and a message of the system.

const ROLES = ["system", "user", "assistant", "tool"];

/**
 * Finds the words that a chat template added. A special token's word is "".
 *
 * @param {string[]} words a word a token
 * @param {number} prompt tokens of the prompt
 * @returns {(string | null)[]} for each word of the prompt null if somebody wrote it; otherwise the
 *   role, at the word that names it, or ""
 */
export function rolesOf(words, prompt) {
  const length = Math.min(prompt, words.length);
  if (!isChat(words)) return new Array(length).fill(null);
  let speaker = "";
  return words.slice(0, length).map((word, i) => {
    if (isRole(words, i)) {
      speaker = word;
      return word;
    }
    return isMark(words, i) || speaker === "system" ? "" : null;
  });
}

/**
 * Whether a prompt begins as a chat does: with a special token and a role.
 *
 * @param {string[]} words
 * @returns {boolean}
 */
function isChat(words) {
  return isRole(words, 1) && words[2] === "\n";
}

/**
 * Whether a word names who speaks.
 *
 * @param {string[]} words
 * @param {number} i
 * @returns {boolean}
 */
function isRole(words, i) {
  return words[i - 1] === "" && ROLES.includes(words[i]);
}

/**
 * Whether a word is a special token, or the line end after one or after a role.
 *
 * @param {string[]} words
 * @param {number} i
 * @returns {boolean}
 */
function isMark(words, i) {
  if (words[i] === "") return true;
  return words[i] === "\n" && (words[i - 1] === "" || isRole(words, i - 1));
}
