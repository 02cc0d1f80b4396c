// Views are plain objects; `render` changes only what differs of the document, so that focus, scroll position and
// selection outlive an update. A text is always a text node: nothing that comes from outside is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `on...` properties are listeners, `key` names it among its siblings, the others are attributes. */
export function h(tag, props, ...children) {
  const kept = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  return { tag, props: props ?? {}, children: kept.map((child) => (typeof child === "object" ? child : String(child))) };
}

/** Make the children of `parent` what `views` describe. */
export function render(parent, views) {
  const free = new Map();
  for (const node of parent.childNodes) {
    const name = nameOf(node);
    free.set(name, [...(free.get(name) ?? []), node]);
  }
  const nodes = views.map((view) => free.get(nameOfView(view))?.shift() ?? made(parent, view));
  for (const rest of free.values()) rest.forEach((node) => node.remove());
  let at = parent.firstChild;
  nodes.forEach((node, index) => {
    update(node, views[index]);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  });
}

const nameOf = (node) => (node.nodeType === Node.TEXT_NODE ? "#text" : `${node.localName} ${node.key ?? ""}`);
const nameOfView = (view) => (typeof view === "string" ? "#text" : `${view.tag} ${view.props.key ?? ""}`);

function made(parent, view) {
  if (typeof view === "string") return document.createTextNode(view);
  const isSvg = view.tag === "svg" || parent.namespaceURI === SVG;
  const node = isSvg ? document.createElementNS(SVG, view.tag) : document.createElement(view.tag);
  node.key = view.props.key;
  node.listens = new Set();
  return node;
}

function update(node, view) {
  if (typeof view === "string") {
    if (node.data !== view) node.data = view;
    return;
  }
  for (const event of node.listens ?? []) if (!(event in view.props)) node[event] = null;
  const wanted = new Map();
  for (const [name, value] of Object.entries(view.props)) {
    if (name.startsWith("on")) {
      node[name] = value;
      node.listens?.add(name);
    } else if (name !== "key" && value !== null && value !== undefined && value !== false) {
      wanted.set(name, value === true ? "" : String(value));
    }
  }
  for (const { name } of [...node.attributes]) if (!wanted.has(name) && !OWN.has(name)) node.removeAttribute(name);
  for (const [name, value] of wanted) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  render(node, view.children);
}

const OWN = new Set(["open"]); // of <details>: whoever reads the page opens it
