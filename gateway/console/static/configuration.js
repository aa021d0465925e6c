// Loads a chosen file into the text field that `data-fills` names.
(() => {
  "use strict";
  document.addEventListener("change", async event => {
    const target = event.target.dataset?.fills;
    const file = event.target.files?.[0];
    if (target && file) document.getElementById(target).value = await file.text();
  });
})();
