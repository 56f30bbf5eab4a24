// How values are written. What a node does not know is null in the document, and "unknown" for people.

export const UNKNOWN = "unknown";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const known = (write) => (value) => (value === null || value === undefined ? UNKNOWN : write(value));

export const text = known(String);
export const yesNo = known((value) => (value ? "yes" : "no"));
export const count = known((value) => whole.format(value));
export const rate = known((value) => tenths.format(value));
export const milliseconds = known((value) => `${tenths.format(value)} ms`);

export const bytes = known((value) => {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${tenths.format(value)} ${UNITS[unit]}`;
});

export const seconds = known((value) => {
  if (value < 60) return `${tenths.format(value)} s`;
  if (value < 3600) return `${whole.format(Math.floor(value / 60))} min`;
  if (value < 48 * 3600) return `${tenths.format(value / 3600)} h`;
  return `${tenths.format(value / 86400)} d`;
});

// A node: its name, or the id if it has none.
export const who = known((node) => node.name ?? node.node_id);
export const names = (nodes, total) =>
  nodes.map(who).join(", ") + (total > nodes.length ? ` and ${whole.format(total - nodes.length)} more` : "");
