(() => {
  // Texts of the page with less contrast than WCAG asks for (1.4.3), and how many there are.
  const LEAST = 4.5;
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  // Any syntax of a colour as red, green, blue and alpha.
  const channels = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((channel, at) => channel * a + below[at] * (1 - a));
  const backgroundOf = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const layer = channels(getComputedStyle(at).backgroundColor);
      layers.unshift(layer);
      if (layer[3] === 1) break;
    }
    return layers.reduce((below, layer) => over(layer, below), channels("Canvas").slice(0, 3));
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((channel) => channel / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const texts = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility() || element.closest(".unseen")) continue;
    const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data.trim()).join("");
    if (own) texts.push([element, null, own]);
    if (element.matches("input, select")) texts.push([element, null, "a value"]);
    if (element.placeholder) texts.push([element, "::placeholder", element.placeholder]);
    const mark = getComputedStyle(element, "::before").content;
    if (mark.startsWith('"')) texts.push([element, "::before", mark]);
  }
  const faint = [];
  for (const [element, pseudo, text] of texts) {
    const below = backgroundOf(element);
    const found = ratio(over(channels(getComputedStyle(element, pseudo).color), below), below);
    if (found < LEAST) faint.push(`${found.toFixed(1)}:1 ${element.tagName.toLowerCase()}${pseudo ?? ""}: ${text.slice(0, 60)}`);
  }
  return { checked: texts.length, faint: [...new Set(faint)], paper: getComputedStyle(document.body).backgroundColor };
})()
