/* Dark or light as it was chosen here, before anything is drawn; without a choice, the system's. */
try {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing */ }
