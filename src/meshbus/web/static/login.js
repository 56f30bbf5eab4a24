// Exchanges the token of a node for a cookie. A link may carry the token behind `#`, which browsers send to nobody.

const answer = document.getElementById("answer");

async function login(token) {
  let response;
  try {
    response = await fetch("login", { method: "POST", headers: { authorization: `Bearer ${token}` } });
  } catch {
    answer.textContent = "The node does not answer. Try again.";
    return;
  }
  if (response.ok) location.replace("./");
  else answer.textContent = "This is not the token of this node. Copy it again, in full.";
}

document.getElementById("login").addEventListener("submit", (event) => {
  event.preventDefault();
  login(document.getElementById("token").value.trim());
});

const given = location.hash.slice(1);
if (given) {
  history.replaceState(null, "", location.pathname); // neither the history nor the address bar keeps it
  login(given);
}
