// Puts a chosen file into the field that it fills.
(() => {
  "use strict";
  document.addEventListener("change", async event => {
    const target = event.target.dataset?.fills;
    const file = event.target.files?.[0];
    if (target && file) document.getElementById(target).value = await file.text();
  });
})();
