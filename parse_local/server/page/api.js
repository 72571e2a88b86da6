// The server's API: questions go out, parsed chunks come in, errors are one sentence.

const KEY = "parse-local.key";
const base = new URL("./", document.baseURI);

/** An error to show: `message` is one sentence for the user. */
export class ApiError extends Error {
  /**
   * @param {string} message what happened and what to do.
   * @param {number} status of HTTP; 0 where there was no answer.
   * @param {number|null} retryAfter seconds to wait, where the server said so.
   */
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The API key of this tab, "" where there is none. */
export const apiKey = () => sessionStorage.getItem(KEY) ?? "";

/** Keeps the key until the tab is closed; "" forgets it. */
export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function call(path, init = {}) {
  const headers = { ...init.headers };
  // A header can hold no other characters; such a key is wrong, and the server will say so.
  if (apiKey()) headers.Authorization = `Bearer ${apiKey().replace(/[^ -~]/g, "?")}`;
  let response;
  try {
    response = await fetch(new URL(path, base), { ...init, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer; is parse-local serve still running?");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  const { status } = response;
  if (status === 401)
    return new ApiError("The server wants an API key, and this one is not it.", 401);
  let said = "";
  try {
    said = (await response.json()).error?.message ?? "";
  } catch {
    // not JSON: something between the server and this page
  }
  const seconds = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const wait = Number.isFinite(seconds) && seconds > 0 ? seconds : null;
  if (status === 429)
    return new ApiError("The server is busy with other questions.", 429, wait ?? 5);
  return new ApiError(said || `The server answered with HTTP status ${status}.`, status, wait);
}

/** The models that the server has, as `/v1/models` lists them. */
export async function models() {
  return (await (await call("v1/models")).json()).data ?? [];
}

/**
 * Asks, and yields each chunk of the answer.
 *
 * @param {Object} request the body of `/v1/chat/completions`.
 * @param {AbortSignal} signal stops it; the server then stops as well.
 * @throws {ApiError} also where the connection breaks off before the end.
 */
export async function* chat(request, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
    signal,
  });
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error)
        throw new ApiError(chunk.error.message ?? "The server stopped with an error.");
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
  }
  throw new ApiError("The connection broke off; what was final is kept.");
}

/** The data of server-sent events. */
async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += decoder.decode(value, { stream: true });
    const blocks = buffer.split(/\r?\n\r?\n/);
    buffer = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}
