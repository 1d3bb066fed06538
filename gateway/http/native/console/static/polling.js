// Loads something again and again while the page is seen, through lost connections.

import { CallFailure, mayComeBack } from "./failures.js";

/**
 * Call `load` until it returns true or the person leaves the page, with a pause after each call. A page that is hidden
 * asks for nothing. Throws the CallFailure of the first call, and that of a later one after which nothing comes back.
 */
export async function keepLoading(load, { signal, everyMs, onLost = () => {} }) {
  let wasAnswered = false;
  while (!signal.aborted) {
    try {
      if (await load()) return;
      wasAnswered = true;
      onLost(false);
    } catch (failure) {
      if (signal.aborted) return;
      if (!(failure instanceof CallFailure) || !wasAnswered || !mayComeBack(failure, wasAnswered)) throw failure;
      onLost(true);
    }
    await pause(everyMs, signal);
    await untilSeen(signal);
  }
}

/** Resolve after a time, or when the person leaves the page. */
function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener("abort", end);
  });
}

function untilSeen(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const controller = new AbortController();
    const end = () => {
      if (document.hidden && !signal.aborted) return;
      controller.abort();
      resolve();
    };
    document.addEventListener("visibilitychange", end, { signal: controller.signal });
    signal.addEventListener("abort", end, { signal: controller.signal });
  });
}
