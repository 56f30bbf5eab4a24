// The mesh as nested subnets with their nodes. A node keeps its element while it stays in its subnet.

import { make, setClass, setText } from "./table.js";
import { milliseconds, who } from "./format.js";

const NOWHERE = "?"; // no subnet has this name

export class Topology {
  constructor(parent, more) {
    this.parent = parent;
    this.more = more;
    this.subnets = new Map();
    this.nodes = new Map();
  }

  update(nodes, leftOut) {
    const wanted = new Map(); // subnet -> nodes; with all subnets above those that have nodes
    for (const node of nodes) {
      const subnet = node.subnet ?? NOWHERE;
      for (const above of lineage(subnet)) if (!wanted.has(above)) wanted.set(above, []);
      wanted.get(subnet).push(node);
    }
    const order = [...wanted.keys()].sort(bySubnet);
    for (const [subnet, box] of this.subnets) {
      if (!wanted.has(subnet)) {
        box.section.remove();
        this.subnets.delete(subnet);
      }
    }
    const here = new Set(nodes.map((node) => node.node_id));
    for (const [id, item] of this.nodes) {
      if (!here.has(id)) {
        item.element.remove();
        this.nodes.delete(id);
      }
    }
    for (const subnet of order) {
      const list = this.box(subnet).list;
      for (const node of wanted.get(subnet)) this.draw(node, list);
      list.hidden = !wanted.get(subnet).length;
    }
    setText(this.more, leftOut ? `${leftOut} more nodes are not shown.` : "");
  }

  box(subnet) {
    let box = this.subnets.get(subnet);
    if (!box) {
      const above = lineage(subnet).at(-2);
      const section = make(above ? this.box(above).inner : this.parent, "section", { class: "subnet" });
      make(section, "h3", {}, subnet === NOWHERE ? "subnet unknown" : subnet === "global" ? "global" : `subnet ${subnet}`);
      box = { section, list: make(section, "ul", { class: "nodes" }), inner: make(section, "div", { class: "inner" }) };
      this.subnets.set(subnet, box);
    }
    return box;
  }

  draw(node, list) {
    let item = this.nodes.get(node.node_id);
    if (!item) {
      const element = make(null, "li", { "data-node": node.node_id });
      item = {
        element,
        name: make(element, "span", { class: "name" }),
        state: make(element, "span"),
        role: make(element, "span", { class: "role" }),
        way: make(element, "span", { class: "way" }),
      };
      this.nodes.set(node.node_id, item);
    }
    if (item.element.parentNode !== list) list.append(item.element);
    setText(item.name, who(node));
    setText(item.state, node.state === "here" ? "this node" : node.state);
    setClass(item.state, `state ${node.state}`);
    setText(item.role, node.gateway ? "gateway" : "");
    setText(item.way, way(node));
  }
}

function way(node) {
  if (node.state === "here") return "";
  const parts = [];
  if (node.hops !== null) parts.push(node.hops === 1 ? "1 hop" : `${node.hops} hops`);
  if (node.via) parts.push(`via ${who(node.via)}`);
  if (node.latency_ms !== null) parts.push(milliseconds(node.latency_ms));
  return parts.join(", ") || "way unknown";
}

// A subnet with those above it, from the outermost on: 3.7 is in 3, and 3 is in global.
function lineage(subnet) {
  if (subnet === NOWHERE || subnet === "global") return [subnet];
  const levels = subnet.split(".");
  return ["global", ...levels.map((_, index) => levels.slice(0, index + 1).join("."))];
}

function bySubnet(one, other) {
  if (one === other) return 0;
  if (one === NOWHERE || other === NOWHERE) return one === NOWHERE ? 1 : -1;
  if (one === "global" || other === "global") return one === "global" ? -1 : 1;
  const [left, right] = [one, other].map((subnet) => subnet.split(".").map(Number));
  for (let level = 0; level < Math.min(left.length, right.length); level += 1)
    if (left[level] !== right[level]) return left[level] - right[level];
  return left.length - right.length;
}
