// The options panel: kept in this browser, sent with each question where they are set.

import { apiKey, setApiKey } from "./api.js";
import { byId } from "./dom.js";

const KEY = "parse-local.options";
const FIELDS = ["strategy", "accept", "temperature", "max-tokens"];

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

function keep(options) {
  try {
    localStorage.setItem(KEY, JSON.stringify(options));
  } catch {
    // a browser that keeps nothing: the form still holds them
  }
}

/**
 * The fields of a request that the panel sets; what is empty is the server's to choose.
 *
 * @returns {Object} `temperature`, `max_tokens` and `parse`.
 */
export function requestOptions() {
  const request = { parse: { events: true } };
  const value = (name) => byId(name).value.trim();
  if (value("strategy")) request.parse.strategy = value("strategy");
  if (value("accept")) request.parse.accept = value("accept");
  if (byId("thinking").checked) request.parse.thinking = true;
  if (value("temperature") && byId("temperature").validity.valid)
    request.temperature = Number(value("temperature"));
  if (value("max-tokens") && byId("max-tokens").validity.valid)
    request.max_tokens = Number(value("max-tokens"));
  return request;
}

/**
 * Fills the panel, and keeps what is changed in it.
 *
 * @param {function(string)} onSystem called with the system prompt of this chat.
 * @param {function()} onKey called when the API key was changed.
 */
export function startOptions({ onSystem, onKey }) {
  const options = kept();
  for (const name of FIELDS) byId(name).value = options[name] ?? "";
  byId("thinking").checked = options.thinking === true;
  byId("key").value = apiKey();
  byId("options-form").addEventListener("submit", (event) => event.preventDefault());
  byId("options-form").addEventListener("input", () => {
    const now = Object.fromEntries(FIELDS.map((name) => [name, byId(name).value]));
    keep({ ...now, thinking: byId("thinking").checked });
    onSystem(byId("system").value.trim());
    byId("options-note").textContent = complaint();
  });
  byId("key").addEventListener("change", () => {
    setApiKey(byId("key").value.trim());
    onKey();
  });
}

function complaint() {
  const wrong = ["temperature", "max-tokens"].map(byId).find((field) => !field.validity.valid);
  if (!wrong) return "";
  const least = wrong.id === "temperature" ? "between 0 and 2" : "a whole number, 1 or more";
  return `${wrong.labels[0].textContent} is ${least}; until then the server chooses.`;
}
