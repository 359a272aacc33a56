(() => {
  const box = document.getElementById("search");
  if (box) {
    const items = [...document.querySelectorAll(".utterances > li")];
    const texts = items.map((item) => item.textContent.toLowerCase());
    const found = document.getElementById("found");
    box.closest(".search").hidden = false;
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      items.forEach((item, i) => {
        item.hidden = !words.every((word) => texts[i].includes(word));
        count += !item.hidden;
      });
      found.textContent = words.length ? `${count} of ${items.length} utterances` : "";
    });
  }
  const closed = [];
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details.more:not([open], .folded), .tree details:not([open])")) {
      closed.push(fold);
      fold.open = true;
    }
  });
  addEventListener("afterprint", () => {
    for (const fold of closed.splice(0)) fold.open = false;
  });
})();
