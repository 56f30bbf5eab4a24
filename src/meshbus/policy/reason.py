"""Every reason to drop a packet or to refuse a request: its recorded code, its counter, and a sentence for people.

Counters, the gateway's kernel, the flight recorder, Spark expressions, the command line and docs/reasons.md all read
this one enum. A new reason is one row here and the rule that counts it (`Counters.count`).

- `code` is what packet files carry, in one byte. Recorded codes never change: 1 to 15 are the gateway's, 16 to 31 are
  those of packets for other nodes, 32 and up are those of packets for this node. Reasons that no packet file carries
  have code 0, which in a file means "not dropped".
- `counter` is the pair under which `Counters` counts it, for instance ("drop", "bad_tag").
- `sentence` says why, and what to look at next.

Kernels and SQL need plain integers: they read `Reason.X.code`. Counters that are named by the code of an error
(`fail.*`, and what a ZeroMQ bridge passes on from the mesh) are not here: docs/errors.md lists those codes.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final


class Reason(Enum):
    """Why something was dropped, refused, left out or ignored."""

    def __init__(self, code: int, what: str, why: str, sentence: str) -> None:
        self.code = code
        """The code in packet files; 0 for a reason that they never carry."""
        self.counter = (what, why)
        self.what = what
        """What was done: `drop`, `refuse`, `filter`, …"""
        self.why = why
        """The short word for it, which counters, reports and notices show."""
        self.sentence = sentence
        """Why, and what to look at next."""

    @property
    def word(self) -> str:
        """The word for it in tables and on the command line, for instance `subnet_local`."""
        return self.name.lower()

    # One reason is one row: name, code, counter, sentence.
    # fmt: off

    # ── gateway: packets for other nodes that policy stops (policy/verdict.py) ──────────────

    SUBNET_LOCAL = 1, "drop", "transit_subnet_local", (
        "The channel must not leave its subnet, or the gateway has no rule for it; check the channel's visibility and unknown_channels.")
    NOT_ANCESTOR = 2, "drop", "transit_not_ancestor", (
        "The channel is visible to parent subnets only, and the destination is not one; check the subnets of source and destination.")
    NOT_EXPORTED = 3, "drop", "transit_not_exported", (
        "The gateway's export list does not name the destination subnet for this channel; check the gateway's exports.")
    UNKNOWN_SUBNET = 4, "drop", "transit_unknown_subnet", (
        "The source or destination subnet is neither local, GLOBAL nor a peer subnet; check peer_subnets and whether both nodes announced themselves.")
    TTL_EXPIRED = 5, "drop", "transit_ttl_expired", (
        "The packet has used up its hops; look for a routing loop, or for a path longer than its TTL.")
    UNAUTHORIZED_PUBLISHER = 6, "drop", "transit_unauthorized_publisher", (
        "The channel restricts its publishers, and the packet's origin is not one of them; check its capabilities and its token.")
    UNRESOLVED_CHANNEL = 7, "drop", "transit_unresolved_channel", (
        "The gateway has rules by prefix and does not know the name of the packet's channel; let the publisher announce its channels, or configure the name at the gateway.")

    # ── forwarding: packets for other nodes that never reach the gateway, or have to wait ───

    NO_ROUTE = 16, "drop", "transit_no_route", (
        "No neighbor leads to the destination; check that the destination is up and that its pingwaves reach this node.")
    OWN = 17, "drop", "transit_own", (
        "This node sent the packet itself and it came back; look for a routing loop.")
    STRANGER = 18, "drop", "transit_stranger", (
        "The sender is not a peer of this node; connect to it first, or set compat_open_relay to forward for any sender.")
    RETURNING = 19, "drop", "transit_returning", (
        "The next hop is the neighbor that the packet came from; routes are changing, or the two nodes disagree about the path.")
    CROWDED = 20, "drop", "transit_crowded", (
        "The gateway let the packet pass, but the queue of packets waiting for the socket was full; reduce the traffic through this node.")
    REVOKED = 21, "drop", "transit_revoked", (
        "The origin or the destination of the packet was revoked; `meshbus revoke ls` shows by whom and why.")

    # ── arrival: packets for this node ──────────────────────────────────────────────────────

    BAD_TAG = 32, "drop", "bad_tag", (
        "Authentication failed: the packet was forged or damaged, or the sender uses other keys; check the path and the mesh key.")
    REPLAYED = 33, "drop", "replayed", (
        "The packet's counter was seen before, is too old, or jumps too far; duplicates on the path are harmless, frequent ones may be an attack.")
    MALFORMED = 34, "drop", "bad_length", (
        "The packet's length does not fit its header; look for truncation on the path, or for a sender with a bug.")
    UNKNOWN_SESSION = 35, "drop", "unknown_session", (
        "No session has this id; the peer still uses a session from before a restart and will connect again.")
    UNKNOWN_SUBPROTOCOL = 36, "drop", "unknown_subprotocol", (
        "No service here handles the subprotocol id; check both nodes' versions, or set unknown_subprotocols to deliver it.")
    NOT_NEGOTIATED = 37, "drop", "not_negotiated", (
        "The sender used a part of the profile that was not negotiated with it; negotiation starts again, so investigate only if this continues.")
    NOT_SUBSCRIBED = 38, "drop", "not_subscribed", (
        "Nothing here is subscribed to the publication; packets that were under way when a subscription ended are normal.")
    INSECURE = 39, "drop", "insecure", (
        "The packet came under keys that every holder of the mesh key can compute, from a peer that must be secure; look for an attack, or for a change of the peer's settings.")
    REVOKED_PUBLISHER = 40, "drop", "revoked_publisher", (
        "The peer may not publish any more, because its key was revoked; `meshbus revoke ls` shows by whom and why.")
    UNREADABLE = 0, "drop", "unreadable", (
        "The datagram is of no known kind; look for another program that sends to this port.")
    EMPTY = 0, "drop", "empty", (
        "The datagram had no bytes; look for another program that sends to this port.")
    TRUNCATED = 0, "drop", "truncated", (
        "The datagram is shorter than a packet header; look for truncation on the path.")
    BAD_MAGIC = 0, "drop", "bad_magic", (
        "A routed packet carries something that is not a packet; look at the sender.")
    UNKNOWN_VERSION = 0, "drop", "unknown_version", (
        "The packet header is of another protocol version; upgrade one of the two nodes.")
    ROUTED_HEARTBEAT = 0, "drop", "routed_heartbeat", (
        "A heartbeat came behind a routing header, which is not allowed because heartbeats prove a direct path; look at the sender.")
    UNNAMED = 0, "drop", "unnamed", (
        "The publication came before the answer that names its channel; some are normal while a subscription begins.")
    NOBODY_LISTENS = 0, "drop", "nobody_listens", (
        "No subscription of the application takes the events; check that the subscription was not closed early.")

    # ── sockets ─────────────────────────────────────────────────────────────────────────────

    RECEIVE_BUFFER_FULL = 0, "drop", "receive_buffer_full", (
        "The kernel dropped datagrams because this process read too slowly; raise receive_buffer_bytes or reduce load.")
    RECEIVE_FAILED = 0, "drop", "receive_failed", (
        "The system reported an error in place of a received datagram; check the network interface.")
    SEND_BACKLOG = 0, "drop", "send_backlog", (
        "The socket took nothing and too many datagrams were waiting; reduce the send rate.")
    SEND_QUEUE_FULL = 0, "drop", "send_queue_full", (
        "Events of publisher.send found no room, and its when_full says to drop; send less often or raise max_bytes.")
    PUSH_EXPIRED = 0, "drop", "push_expired", (
        "Events of node.send waited too long for credit; the inbox of the peer is full, or the peer is unreachable.")
    UNSENT_REFUSED = 0, "drop", "unsent_refused", (
        "Nothing listens at the destination address; check that the peer runs and that its address is right.")
    UNSENT_UNREACHABLE = 0, "drop", "unsent_unreachable", (
        "The system has no path to the destination address; check interfaces, routes and the address.")
    UNSENT_TOO_LONG = 0, "drop", "unsent_too_long", (
        "The datagram is larger than the path allows; check the MTU of the interface.")
    UNSENT_FORBIDDEN = 0, "drop", "unsent_forbidden", (
        "The system forbids sending to the address; check the firewall and whether it is a broadcast address.")
    UNSENT_WRONG_FAMILY = 0, "drop", "unsent_wrong_family", (
        "The address is IPv4 and the socket IPv6, or the reverse; bind to an address of the peer's family.")
    UNSENT_OTHER = 0, "drop", "unsent_other", (
        "The system refused the datagram for a reason without a counter of its own; check the system's log.")

    # ── sessions and handshakes ─────────────────────────────────────────────────────────────

    MALFORMED_PACKET = 0, "drop", "malformed_packet", (
        "A packet of a session that is not confirmed yet has a bad header or length; look at the sender.")
    CONTESTED_SESSION = 0, "drop", "contested_session", (
        "Too many packets wait for the outcome of a contested session; look for two nodes with one identity.")
    HANDSHAKE_UNCONFIRMED = 0, "drop", "handshake_unconfirmed", (
        "A handshake was answered, but the other side never used the session; its answer was lost, or it gave up.")
    HANDSHAKE_CROWDED = 0, "drop", "handshake_crowded", (
        "Newer handshakes pushed out one that was not confirmed; look for many nodes that connect at once, or for an attack.")
    HANDSHAKE_TRUNCATED = 0, "drop", "handshake_truncated", (
        "The handshake message is too short; look for truncation on the path.")
    HANDSHAKE_BAD_MAGIC = 0, "drop", "handshake_bad_magic", (
        "A routed handshake does not start like a packet; look at the sender.")
    HANDSHAKE_BAD_LENGTH = 0, "drop", "handshake_bad_length", (
        "The header of the handshake claims an impossible length; look at the sender.")
    HANDSHAKE_UNKNOWN_VERSION = 0, "drop", "handshake_unknown_version", (
        "The handshake is of another protocol version; upgrade one of the two nodes.")
    HANDSHAKE_UNKNOWN_KIND = 0, "drop", "handshake_unknown_kind", (
        "A packet without the handshake flag came where a handshake was expected; look at the relay that sent it.")
    HANDSHAKE_MISROUTED = 0, "drop", "handshake_misrouted", (
        "The routed handshake is for another node; look at the relay that sent it.")
    HANDSHAKE_RATE = 0, "drop", "handshake_rate", (
        "Too many handshakes came at once; they are tried again, so investigate only if this continues, which may be an attack.")
    HANDSHAKE_REPLAY = 0, "drop", "handshake_replay", (
        "The handshake message was seen before; repeats are normal on lossy paths.")
    HANDSHAKE_SOURCE = 0, "drop", "handshake_source", (
        "The node id inside the handshake is not the one in its routing header, or is this node's own; look for two nodes with one identity.")
    HANDSHAKE_UNVERIFIED = 0, "drop", "handshake_unverified", (
        "The handshake cannot be decrypted with this node's keys; check the mesh key and the public key of the peer.")
    HANDSHAKE_RETIRED_KEY = 0, "drop", "handshake_retired_key", (
        "A handshake uses the previous mesh key, whose window is over; give the node there the new key.")
    HANDSHAKE_UNEXPECTED = 0, "drop", "handshake_unexpected", (
        "A handshake came that nothing here waits for; the answer was late, or this node does not accept the peer.")
    REFUSE_RETIRED_KEY = 0, "refuse", "retired_key", (
        "The session of a peer began with the previous mesh key, whose window is over, and the peer did not prove the new one; give it the new key.")
    ROTATION_MALFORMED = 0, "drop", "rotation_malformed", (
        "A message about a new secret cannot be read; check the version of the peer.")
    ROTATION_INSECURE = 0, "drop", "rotation_insecure", (
        "A message about a new secret came in a session that is not secure, where it counts for nothing; set secure to auto or require at both nodes.")
    ROTATION_UNKNOWN_KEY = 0, "drop", "rotation_unknown_key", (
        "A peer proves another mesh key than the current one here; normal while a mesh changes its key and this node has not got the new one yet.")
    ROTATION_UNSENT = 0, "drop", "rotation_unsent", (
        "A message about a new secret was not sent because too much waits for the peer; its session begins again when the window ends, and a renewal is asked for again.")
    RENEWAL_UNEXPECTED = 0, "drop", "renewal_unexpected", (
        "A renewed token, or a refusal to renew one, came that does not belong to a token of this node; one that is late is normal.")
    REFUSE_RENEWAL = 0, "refuse", "renewal", (
        "A peer asked this node to renew a token, and was refused; its notice token_not_renewed says why.")
    REFUSE_HANDSHAKE_NOT_ADMITTED = 0, "refuse", "handshake_not_admitted", (
        "The node's settings do not admit this initiator; add it to the accepted nodes if it should connect.")
    REFUSE_LIVE_SESSION = 0, "refuse", "live_session", (
        "A new session was refused because the peer's current one still answers; look for two nodes with one identity.")
    REFUSE_PEERS_FULL = 0, "refuse", "peers_full", (
        "A handshake was not answered because too many peers, or too many of one host, have a session; look for an attack.")
    REFUSE_LANE = 0, "refuse", "lane", (
        "A neighbor got no receive buffer of its own: too many have one, or no file handle is left; it shares the one of strangers.")
    EVICT_UNPROVED_PEER = 0, "evict", "unproved_peer", (
        "A peer behind a relay that was never heard made room for a newer one; look for an attack through the relay.")
    SECURE_MALFORMED = 0, "drop", "secure_malformed", (
        "A message of a secure session could not be read; check the versions of both nodes.")
    SECURE_UNEXPECTED = 0, "drop", "secure_unexpected", (
        "A message of a secure session came that nothing here waits for; repetitions under loss are normal.")
    SECURE_WRONG_ENTITY = 0, "drop", "secure_wrong_entity", (
        "The entity key in an exchange is not the one of the peer; another node on the path may pose as it.")
    SECURE_BAD_SIGNATURE = 0, "drop", "secure_bad_signature", (
        "The signature of an exchange of keys is wrong; the message was changed on the path, or comes from another node.")
    REFUSE_DOWNGRADE = 0, "refuse", "downgrade", (
        "A session that should be secure did not become so, and carries no data; check the setting secure at the peer, and whether a node on the path removes packets.")
    REFUSE_UNSIGNED = 0, "refuse", "unsigned", (
        "A session ended because the key that succeeded that of its peer did not sign it in time; the peer may connect again with its new key.")
    UNSENT_INSECURE = 0, "drop", "unsent_insecure", (
        "Messages waited for a session to become secure, and were too many, or waited in vain; see refuse.downgrade.")
    REFUSE_PINS_FULL = 0, "refuse", "pins_full", (
        "No more nodes can be pinned as secure; remove those that are gone with `meshbus pins reset`.")
    MANIFEST_MALFORMED = 0, "drop", "manifest_malformed", (
        "The peer's manifest cannot be read; check its version.")
    MANIFEST_UNWANTED = 0, "drop", "manifest_unwanted", (
        "A manifest came from a peer with which nothing is negotiated; check whether it should use the profile.")

    # ── streams ─────────────────────────────────────────────────────────────────────────────

    DUPLICATE = 0, "drop", "duplicate", (
        "The packet of a reliable stream has arrived before; a retransmission crossed its acknowledgement, which is normal.")
    BEYOND_WINDOW = 0, "drop", "beyond_window", (
        "The packet is further ahead than a reliable stream may hold; the sender ignores the window, or much was lost.")
    BUFFER_FULL = 0, "drop", "buffer_full", (
        "The memory for packets out of order is used up; look for heavy loss on the path.")
    OTHER_STREAM = 0, "drop", "other_stream", (
        "Packets that were waiting belong to an earlier stream with this id; the sender started again, which is normal after a restart.")
    WRONG_STREAM = 0, "drop", "wrong_stream", (
        "The packet's subprotocol is not that of its reliable stream; look at the sender.")
    PART_MALFORMED = 0, "drop", "part_malformed", (
        "A part of a large event cannot be read, or nothing large may come on its stream; look at the sender.")
    PART_DISORDER = 0, "drop", "part_disorder", (
        "A part does not continue the large event of its stream, so the event is dropped; its sender gave up, or overlaps its parts.")
    PART_WAITS = 0, "drop", "part_waits", (
        "The memory for unfinished large events is used up, so a new one has to wait, and is sent again; send fewer at a time.")
    LARGE_UNFINISHED = 0, "drop", "large_unfinished", (
        "A large event was dropped because the rest of it never came; look at its sender and at the path.")
    REFUSE_LARGE = 0, "refuse", "large", (
        "A large event is above max_event_bytes of its channel here; raise it, or publish smaller events.")
    LARGE_MALFORMED = 0, "drop", "large_malformed", (
        "A message about a large event cannot be read; check the version of the peer.")
    TOO_MANY_STREAMS = 0, "drop", "too_many_streams", (
        "The peer opened more reliable streams than are kept, so the least recent one was dropped; reduce its channels.")
    BAD_BASE = 0, "drop", "bad_base", (
        "A BASE message names an impossible sequence; look at the sender.")
    BAD_FIN = 0, "drop", "bad_fin", (
        "A FIN message came before everything had arrived; look at the sender.")
    BAD_ACK = 0, "drop", "bad_ack", (
        "An acknowledgement covers packets that were never sent; look at the receiver.")
    ACK_UNKNOWN_STREAM = 0, "drop", "ack_unknown_stream", (
        "An acknowledgement is for a stream that is over; late ones are normal.")
    RELIABLE_MALFORMED = 0, "drop", "reliable_malformed", (
        "A message about a reliable stream cannot be read; check the version of the peer.")
    RELIABLE_UNKNOWN_STREAM = 0, "drop", "reliable_unknown_stream", (
        "A message is about a reliable stream that is over; late ones are normal.")
    GRANT_MALFORMED = 0, "drop", "grant_malformed", (
        "A credit grant cannot be read; check the version of the peer.")
    GRANT_UNKNOWN_STREAM = 0, "drop", "grant_unknown_stream", (
        "A credit grant is for a stream that is over; late ones are normal.")
    REPAIR_MALFORMED = 0, "drop", "repair_malformed", (
        "A NACK, RESET or acknowledgement of a net-mesh peer cannot be read; check the version of the peer.")
    REPAIR_UNKNOWN_STREAM = 0, "drop", "repair_unknown_stream", (
        "A NACK, RESET or acknowledgement is for a stream that is over; late ones are normal.")
    GRANT_EXCESS = 0, "drop", "grant_excess", (
        "A credit grant confirms more than was sent, so the excess was cut off; look at the receiver.")

    # ── membership and interest ─────────────────────────────────────────────────────────────

    MEMBERSHIP_MALFORMED = 0, "drop", "membership_malformed", (
        "A membership message cannot be read; check the version of the peer.")
    PROOF_MALFORMED = 0, "drop", "proof_malformed", (
        "A message of an identity proof cannot be read; check the version of the peer.")
    PROOF_UNEXPECTED = 0, "drop", "proof_unexpected", (
        "A message of an identity proof belongs to none that is under way; late and repeated ones are normal.")
    PROOF_WRONG_ENTITY = 0, "drop", "proof_wrong_entity", (
        "An identity proof names an entity that is not the peer's; look at the peer.")
    PROOF_BAD_SIGNATURE = 0, "drop", "proof_bad_signature", (
        "The signature of an identity proof is wrong, so the peer does not have the key; look at the peer.")
    MEMBERSHIP_UNEXPECTED_ACK = 0, "drop", "membership_unexpected_ack", (
        "An answer came to a subscribe that has timed out or was never sent; look for a slow path.")
    MEMBERSHIP_FOREIGN_ACK = 0, "drop", "membership_foreign_ack", (
        "A peer answered a subscribe that went to another one; look at the peer.")
    INTEREST_MALFORMED = 0, "drop", "interest_malformed", (
        "An interest message cannot be read; check the version of the peer.")
    INTEREST_RATE = 0, "drop", "interest_rate", (
        "The peer sends interests faster than they may be checked; it asks again, so investigate only if this continues.")
    INTEREST_UNEXPECTED_MATCHES = 0, "drop", "interest_unexpected_matches", (
        "A publisher answered an interest that this node has withdrawn or never had; it is told to stop.")
    INTEREST_FOREIGN_MATCH = 0, "drop", "interest_foreign_match", (
        "A publisher matched a channel outside the prefix that was asked for; look at the publisher.")
    INTEREST_TOO_MANY_MATCHES = 0, "drop", "interest_too_many_matches", (
        "A prefix matches more channels than are kept; subscribe to a longer prefix.")
    REFUSE_TOO_MANY_INTERESTS = 0, "refuse", "too_many_interests", (
        "The peer has reached its limit of interests; subscribe to fewer, shorter prefixes.")

    # ── who may subscribe (engine/channels/authorize.py) ────────────────────────────────────

    REFUSE_THROTTLED = 0, "refuse", "throttled", (
        "The peer was refused too often in a short time and has to wait; find out why it was refused before.")
    REFUSE_TOO_MANY_CHANNELS = 0, "refuse", "too_many_channels", (
        "The peer is subscribed to as many channels as max_channels_per_peer allows; unsubscribe from some.")
    REFUSE_UNKNOWN_CHANNEL = 0, "refuse", "unknown_channel", (
        "This node has no configuration for the channel; check the name, or configure the channel here.")
    REFUSE_NOT_VISIBLE = 0, "refuse", "not_visible", (
        "The channel is not visible from the peer's subnet; check its visibility and the peer's subnet.")
    REFUSE_UNPINNED = 0, "refuse", "unpinned", (
        "The channel needs a token and the peer has not announced its identity yet; it may try again after its announcement.")
    REFUSE_CAPABILITY = 0, "refuse", "capability", (
        "The peer has not announced the capabilities that the channel requires; check subscribe_caps and its announcement.")
    REFUSE_TOKEN = 0, "refuse", "token", (
        "The channel requires a token and none that the peer presented or that is kept is valid for it; see the `token` counters for what is wrong with it.")
    LAPSE_UNKNOWN_CHANNEL = 0, "lapse", "unknown_channel", (
        "A subscription or reading ended because its channel is no longer configured here; check the channel configurations.")
    LAPSE_CAPABILITY = 0, "lapse", "capability", (
        "A subscription or reading ended because the peer no longer announces the required capabilities; check its announcement.")
    LAPSE_TOKEN = 0, "lapse", "token", (
        "A subscription or reading ended because its token expired or was revoked; issue a new token.")
    TOKEN_MALFORMED = 0, "token", "malformed", (
        "A presented token cannot be read; check how it was copied.")
    TOKEN_WRONG_SUBJECT = 0, "token", "wrong_subject", (
        "A presented token was issued to another identity; issue one to this peer.")
    TOKEN_WRONG_SCOPE = 0, "token", "wrong_scope", (
        "A presented token is for another action or another channel; issue one with the right scope.")
    TOKEN_NOT_YET_VALID = 0, "token", "not_yet_valid", (
        "A presented token is not valid yet; compare the clocks of issuer and this node.")
    TOKEN_EXPIRED = 0, "token", "expired", (
        "A presented token has expired; issue a new one.")
    TOKEN_BAD_SIGNATURE = 0, "token", "bad_signature", (
        "The signature of a presented token is wrong: it was damaged or forged; issue a new one.")
    TOKEN_UNTRUSTED = 0, "token", "untrusted", (
        "A presented token is genuine, but neither its issuer nor its chain is trusted here; check trusted_issuers.")
    TOKEN_REVOKED = 0, "token", "revoked", (
        "The issuer of a presented token has revoked it; issue a new one.")

    # ── publishing ──────────────────────────────────────────────────────────────────────────

    REFUSE_PUBLISH_DENIED = 0, "refuse", "publish_denied", (
        "This node may not publish on the channel; check publish_caps, its own capabilities and its token.")
    REFUSE_PUBLISH_RATE = 0, "refuse", "publish_rate", (
        "The channel's rate limit is used up; publish more slowly or raise max_rate_pps.")
    FILTER_NOT_VISIBLE = 0, "filter", "not_visible", (
        "A subscriber was left out because the channel is not visible from its subnet; check the channel's visibility.")
    FILTER_NOT_AUTHORIZED = 0, "filter", "not_authorized", (
        "A subscriber was left out because it is not authorized for the channel any more; it has to subscribe again.")
    FILTER_TOKEN = 0, "filter", "token", (
        "A subscriber was left out because its token expired or was revoked; issue a new one.")

    # ── requests ────────────────────────────────────────────────────────────────────────────

    PEER_SHARE = 0, "drop", "peer_share", (
        "The peer's messages would take more of this node's time than one peer may have; look at what that peer sends.")
    REQUEST_MALFORMED = 0, "drop", "request_malformed", (
        "A request or reply cannot be read; check the version of the peer.")
    REQUEST_DUPLICATE = 0, "drop", "request_duplicate", (
        "A request came again while it is being answered; the peer uses a request number twice.")
    REPLY_LATE = 0, "drop", "reply_late", (
        "A reply came after its request timed out or was canceled; raise the timeout if this is frequent.")
    REPLY_FOREIGN = 0, "drop", "reply_foreign", (
        "A peer answered a request that went to another one; look at the peer.")
    ANSWER_LATE = 0, "drop", "answer_late", (
        "The application answered a request after the requester stopped waiting; answer faster or raise the timeout.")
    CANCEL_LATE = 0, "drop", "cancel_late", (
        "A cancel came for something that is over already, which is normal.")
    CANCEL_UNSENT = 0, "drop", "cancel_unsent", (
        "A cancel could not be sent because the stream is full; the responder stops at the request's deadline.")
    REFUSAL_UNSENT = 0, "drop", "refusal_unsent", (
        "The answer to a request could not be sent because the stream is full; the peer does not read its answers.")
    REFUSE_REQUEST_NO_RESPONDER = 0, "refuse", "request_no_responder", (
        "Nothing here answers requests on the channel; start a responder, or ask another node.")
    REFUSE_REQUEST_UNKNOWN_CHANNEL = 0, "refuse", "request_unknown_channel", (
        "This node has no configuration for the channel of the request; check the name, or configure the channel here.")
    REFUSE_REQUEST_DENIED = 0, "refuse", "request_denied", (
        "The policy of the channel does not allow the peer to send requests; check visibility, capabilities and tokens.")
    REFUSE_REQUEST_BUSY = 0, "refuse", "request_busy", (
        "The limit of open requests is reached, for this peer or in total; answer faster or ask less often.")
    REFUSE_REQUEST_EXPIRED = 0, "refuse", "request_expired", (
        "The request came with no time left to answer it; raise its timeout.")

    # ── presence (0x4D08) ───────────────────────────────────────────────────────────────────

    PRESENCE_MALFORMED = 0, "drop", "presence_malformed", (
        "A presence message cannot be read; look at the peer's version.")
    PRESENCE_UNEXPECTED_ECHO = 0, "drop", "presence_unexpected_echo", (
        "A clock answer belongs to no open question; late answers are normal, many of them are not.")

    # ── reading logs of other nodes ─────────────────────────────────────────────────────────

    HISTORY_MALFORMED = 0, "drop", "history_malformed", (
        "A history message cannot be read; check the version of the peer.")
    HISTORY_DUPLICATE = 0, "drop", "history_duplicate", (
        "The peer asked for a log under a request number that is in use; look at the peer.")
    HISTORY_LATE = 0, "drop", "history_late", (
        "A publisher reported an error about a reading that is over, which is normal.")
    HISTORY_STRAY = 0, "drop", "history_stray", (
        "A publisher sends pages that nothing here reads any more; it is told to stop.")
    HISTORY_DISORDER = 0, "drop", "history_disorder", (
        "Events of a log came out of order and are asked for again; look at the publisher if this continues.")
    PAGE_LATE = 0, "drop", "page_late", (
        "A page was read from the log for a reader that has left, which is normal.")
    REFUSE_HISTORY_UNKNOWN_CHANNEL = 0, "refuse", "history_unknown_channel", (
        "The channel is unknown here or is not logged; check the name, or switch its log on.")
    REFUSE_HISTORY_DENIED = 0, "refuse", "history_denied", (
        "The peer may not read the channel's log; see the `refuse` and `lapse` counters for the cause.")
    REFUSE_HISTORY_RANGE_GONE = 0, "refuse", "history_range_gone", (
        "The log no longer holds the sequence that was asked for; read from the first that is left, or retain more.")
    REFUSE_HISTORY_BUSY = 0, "refuse", "history_busy", (
        "The limit of readers is reached, or the peer is throttled; try again later.")
    REFUSE_HISTORY_CLOSED = 0, "refuse", "history_closed", (
        "The reader's stream or the log was closed; it may ask again.")

    # ── replicated channels ─────────────────────────────────────────────────────────────────

    REPLICATION_MALFORMED = 0, "drop", "replication_malformed", (
        "A message about a replicated channel cannot be read; check the version of the peer.")
    REPLICATION_RESERVED = 0, "drop", "replication_reserved", (
        "A message has a dispatch code that is reserved for later versions; upgrade this node if the sender needs an answer.")
    REPLICATION_UNKNOWN_CHANNEL = 0, "drop", "replication_unknown_channel", (
        "A message is about a channel that is not replicated here; check the replicas of the channel on both nodes.")
    REPLICATION_QUEUE_FULL = 0, "drop", "replication_queue_full", (
        "Too many messages about replicated channels were waiting; the sender asks again, so investigate only if this continues.")
    REPLICA_UNEXPECTED = 0, "drop", "replica_unexpected", (
        "A message about a replicated channel belongs to nothing that is under way; late ones are normal, many of them are not.")
    REPLICA_NOT_MEMBER = 0, "drop", "replica_not_member", (
        "A node that is not a member of the replicated channel sent a message about it; check the replicas of the channel on both nodes.")
    REPLICA_FOUNDERS_DIFFER = 0, "drop", "replica_founders_differ", (
        "A node asked to found a replicated channel with other members than this node would; check that replicas is the same on all nodes.")
    REPLICA_HALTED = 0, "drop", "replica_halted", (
        "A message came for a replica that stopped because its disk failed; repair the disk and open the channel again.")
    REPLICA_OVER_BUDGET = 0, "drop", "replica_over_budget", (
        "Events for a replica that catches up were held back by the bandwidth budget; it asks again, so investigate only if it never catches up.")
    REFUSE_REPLICA_STALE = 0, "refuse", "replica_stale", (
        "A message of an epoch that is over was rejected; its sender was cut off, or has just been replaced as leader.")
    REFUSE_REPLICA_APPEND = 0, "refuse", "replica_append", (
        "An append to a replicated channel was refused; the error says why: no majority, too much waiting, or too large.")

    # ── announcements ───────────────────────────────────────────────────────────────────────

    ANNOUNCEMENT_MALFORMED = 0, "drop", "announcement_malformed", (
        "An announcement cannot be read; check the version of the peer.")
    ANNOUNCEMENT_FOREIGN = 0, "drop", "announcement_foreign", (
        "A peer sent the announcement of another node as its own; look at the peer.")
    ANNOUNCEMENT_OWN = 0, "drop", "announcement_own", (
        "This node's own announcement came back, which is normal.")
    ANNOUNCEMENT_DUPLICATE = 0, "drop", "announcement_duplicate", (
        "The announcement was heard before by another path, which is normal.")
    ANNOUNCEMENT_UNSIGNED = 0, "drop", "announcement_unsigned", (
        "The announcement is not signed and require_signed_announcements is set; sign it, or change the setting.")
    ANNOUNCEMENT_RATE = 0, "drop", "announcement_rate", (
        "More announcements came than signatures may be checked; some are normal when a large fleet starts.")
    ANNOUNCEMENT_SIGNATURE = 0, "drop", "announcement_signature", (
        "The signature of the announcement is wrong: it was damaged or forged; look at the nodes that pass it on.")
    ANNOUNCEMENT_NODE_ID = 0, "drop", "announcement_node_id", (
        "The announced node id does not belong to the key that signed it; look for a forgery.")
    ANNOUNCEMENT_ENTITY = 0, "drop", "announcement_entity", (
        "The node id was announced with another key before; restart this node if the key was changed on purpose.")
    ANNOUNCEMENT_INDEX_FULL = 0, "drop", "announcement_index_full", (
        "The index of announced nodes is full; the fleet is larger than it holds.")
    EVICT_CHANNEL_NAMES = 0, "evict", "channel_names", (
        "A gateway had learned as many channel names as it keeps, so the oldest ones from the neighbor that sent most were removed; configure the names that matter.")
    EVICT_ANNOUNCEMENT = 0, "evict", "announcement", (
        "The index of announced nodes was full, so the oldest node from the neighbor that announced most was removed; look at the neighbors.")
    ANNOUNCEMENT_STALE = 0, "drop", "announcement_stale", (
        "A newer announcement of the node is known, which is normal when paths differ in length.")
    CHANNEL_NOT_NAMED = 0, "drop", "channel_not_named", (
        "This node publishes on more channels than an announcement names; configure the name at gateways that have rules by prefix.")
    CHAIN_NOT_ANNOUNCED = 0, "drop", "chain_not_announced", (
        "This node holds more chains than an announcement names, so others do not find it for the rest; replicate fewer channels here.")
    ANNOUNCEMENT_FORWARD_TOO_LARGE = 0, "drop", "announcement_forward_too_large", (
        "The announcement does not fit a packet any more when passed on; announce fewer capabilities.")

    # ── routes ──────────────────────────────────────────────────────────────────────────────

    PINGWAVE_OWN = 0, "drop", "pingwave_own", (
        "This node's own pingwave came back, which is normal.")
    PINGWAVE_HOPS = 0, "drop", "pingwave_hops", (
        "The pingwave has used up its hops; its origin is too far away, or there is a loop.")
    PINGWAVE_STRANGER = 0, "drop", "pingwave_stranger", (
        "The pingwave comes from an address that is not a peer's; look for a node that should be connected.")
    PINGWAVE_RATE = 0, "drop", "pingwave_rate", (
        "A neighbor sends more pingwaves than are read; the fleet is very large, or the neighbor floods.")
    PINGWAVE_FORGED = 0, "drop", "pingwave_forged", (
        "The pingwave claims a first hop that is not the neighbor that sent it; look at the neighbor.")
    PINGWAVE_NEWCOMERS = 0, "drop", "pingwave_newcomers", (
        "A neighbor reports unknown nodes faster than they are learned; some are normal when meshes join.")
    PINGWAVE_OLD = 0, "drop", "pingwave_old", (
        "A newer pingwave of the same origin is known; it came by a slower path, which is normal.")
    PINGWAVE_FULL = 0, "drop", "pingwave_full", (
        "The tables have no room for another route or node; the fleet is larger than they hold.")
    IGNORE_PINGWAVE_COPY = 0, "ignore", "pingwave_copy", (
        "The same pingwave came by another neighbor too, which is normal.")
    RELAY_MALFORMED = 0, "drop", "relay_malformed", (
        "A relayed handshake cannot be read; check the version of the peer.")
    RELAY_SOURCE = 0, "drop", "relay_source", (
        "A peer asked to relay a handshake in the name of another node; look at the peer.")
    RELAY_NO_ROUTE = 0, "drop", "relay_no_route", (
        "No neighbor leads to the node that a handshake should be relayed to; check that it is up.")

    # ── NAT traversal ───────────────────────────────────────────────────────────────────────

    REFLEX_MALFORMED = 0, "drop", "reflex_malformed", (
        "A reflex message cannot be read; check the version of the peer.")
    IGNORE_REFLEX_UNASKED = 0, "ignore", "reflex_unasked", (
        "A reflex answer came late or twice, which is normal.")
    WITHDRAWAL_MALFORMED = 0, "drop", "withdrawal_malformed", (
        "A withdrawal of a route cannot be read; check the version of the peer.")
    WITHDRAWAL_OLD = 0, "drop", "withdrawal_old", (
        "A withdrawal of a route came after a later one, or twice; late ones are normal.")
    RENDEZVOUS_MALFORMED = 0, "drop", "rendezvous_malformed", (
        "A rendezvous message cannot be read; check the version of the peer.")
    KEEPALIVE_UNEXPECTED = 0, "drop", "keepalive_unexpected", (
        "A keep-alive came from a node or host that no introduction named; late ones are normal.")
    IGNORE_KEEPALIVE_REPEATED = 0, "ignore", "keepalive_repeated", (
        "A second keep-alive of the same introduction came; several are sent on purpose.")
    REFUSE_INTRODUCTION_RATE = 0, "refuse", "introduction_rate", (
        "Introductions are asked for faster than they are made; the peer tries again.")
    REFUSE_INTRODUCTION_TARGET = 0, "refuse", "introduction_target", (
        "The target of a requested introduction is empty, this node, or the requesting node itself; check the peer.")
    REFUSE_INTRODUCTION_NO_SESSION = 0, "refuse", "introduction_no_session", (
        "This node is not directly connected to both nodes that it should introduce; choose another coordinator.")
    REFUSE_INTRODUCTION_NO_REFLEX = 0, "refuse", "introduction_no_reflex", (
        "The public address of the wanted node is not known here; wait for its announcement.")
    REFUSE_INTRODUCTION_ADDRESS = 0, "refuse", "introduction_address", (
        "The asking node named an address that cannot be used from here; check what it announces.")
    REFUSE_INTRODUCTION_FOREIGN_ADDRESS = 0, "refuse", "introduction_foreign_address", (
        "The asking node named an address on a host that is not its own; look for an attack.")
    REFUSE_INTRODUCTION_ACK = 0, "refuse", "introduction_ack", (
        "An acknowledgement belongs to no introduction made here, or came too late.")
    REFUSE_PUNCH_TARGET = 0, "refuse", "punch_target", (
        "The peer named in an introduction is empty, this node, or the coordinator itself; check the coordinator.")
    REFUSE_PUNCH_NO_SESSION = 0, "refuse", "punch_no_session", (
        "The coordinator of an introduction is not directly connected; look at the coordinator.")
    REFUSE_PUNCH_OTHER_COORDINATOR = 0, "refuse", "punch_other_coordinator", (
        "An introduction came from another coordinator than the one that was asked; look at that node.")
    REFUSE_PUNCH_ADDRESS = 0, "refuse", "punch_address", (
        "An introduction names an address that cannot be used from here; look at the coordinator.")
    REFUSE_PUNCH_RATE = 0, "refuse", "punch_rate", (
        "A coordinator sends introductions faster than they are followed; look at the coordinator if this continues.")
    REFUSE_PUNCH_HOST_RATE = 0, "refuse", "punch_host_rate", (
        "Introductions name one host too often, which may be an attack on that host; look at the coordinator.")
    REFUSE_PUNCH_FULL = 0, "refuse", "punch_full", (
        "The limit of introductions at the same time is reached; the peer tries again.")
    REFUSE_PUNCH_ACK_UNEXPECTED = 0, "refuse", "punch_ack_unexpected", (
        "An acknowledgement came for no introduction that is being followed; late ones are normal.")

    # ── daemons ─────────────────────────────────────────────────────────────────────────────

    CARRIED_FULL = 0, "drop", "carried_full", (
        "A peer sent messages for daemons faster than this node handles them; they are repeated, so investigate only if this continues.")
    MIGRATION_MALFORMED = 0, "drop", "migration_malformed", (
        "A migration message cannot be read; check the version of the peer.")
    MIGRATION_UNREACHABLE = 0, "drop", "migration_unreachable", (
        "A migration message was not sent because its node is not connected; it is sent again later, so connect to that node if this continues.")
    MIGRATION_STALE = 0, "drop", "migration_stale", (
        "A migration message belongs to a move that is over or to another attempt; late ones are normal on lossy paths.")
    MIGRATION_UNEXPECTED = 0, "drop", "migration_unexpected", (
        "A migration message is about a move that this node does not take part in; look at the sender if this continues.")
    MIGRATION_PART = 0, "drop", "migration_part", (
        "A part of a snapshot does not fit the parts before it, or the snapshot is too large; look at the sender.")
    MIGRATION_LOOP = 0, "drop", "migration_loop", (
        "A node sent itself migration messages without end; report it as a bug.")
    REFUSE_MIGRATION_SENDER = 0, "refuse", "migration_sender", (
        "A migration message came from a node that is not the source, target or orchestrator of the move; look at the sender.")
    REFUSE_MIGRATION_BUSY = 0, "refuse", "migration_busy", (
        "A daemon was asked to move while it is moving or already runs here; wait until the move is over.")
    REFUSE_MIGRATION_FULL = 0, "refuse", "migration_full", (
        "Too many daemons move at the same time, or too many events wait for one of them; try again later.")
    REFUSE_MIGRATION_STATE = 0, "refuse", "migration_state", (
        "A snapshot could not be taken, read or restored; the message to the orchestrator says why.")

    CHAIN_MALFORMED = 0, "drop", "chain_malformed", (
        "A message about chains, groups or partitions could not be read; look at the sender.")
    CHAIN_UNKNOWN = 0, "drop", "chain_unknown", (
        "A message is about a chain or a group that this node has no part in; look at the sender if this continues.")
    CHAIN_BROKEN = 0, "drop", "chain_broken", (
        "An event does not follow the chain of its origin: it was changed, or two nodes have written the same chain.")
    CHAIN_GAP = 0, "drop", "chain_gap", (
        "An event of a chain came before the one that precedes it; the missing ones are fetched.")
    CHAIN_DUPLICATE = 0, "drop", "chain_duplicate", (
        "An event of a chain is known already; normal after events were fetched.")
    CHAIN_UNEXPECTED = 0, "drop", "chain_unexpected", (
        "Events of a chain, or an answer about it, came without a question; late ones are normal.")
    CHAIN_UNVERIFIABLE = 0, "drop", "chain_unverifiable", (
        "Two copies of a chain have no event in common that both still keep, so they cannot be compared; look at both nodes.")
    COORDINATION_UNSENT = 0, "drop", "coordination_unsent", (
        "A message about chains, groups or partitions could not be sent, because its peer had just gone or reads too slowly.")
    REFUSE_CHAIN_SENDER = 0, "refuse", "chain_sender", (
        "A message about a chain or a group came from a node that is not a member of it; look at the sender.")
    REFUSE_CHAIN_FULL = 0, "refuse", "chain_full", (
        "A peer sent more events of a chain or a branch than are kept; look at the sender.")
    REFUSE_PROOF_RATE = 0, "refuse", "proof_rate", (
        "A peer asks for proofs, or sends them, faster than they are checked; look at the sender if this continues.")

    # ── policy of the fleet ─────────────────────────────────────────────────────────────────

    POLICY_MALFORMED = 0, "drop", "policy_malformed", (
        "A message about the policy of the fleet cannot be read; check the version of the peer.")
    POLICY_OLD = 0, "drop", "policy_old", (
        "A neighbor offers an older policy of the fleet than this node holds; it is told about the newer one, which is normal.")
    POLICY_CONFLICT = 0, "drop", "policy_conflict", (
        "Two different policies of the fleet have the same version; sign the one that is meant again, with a higher version.")
    POLICY_TOO_LARGE = 0, "drop", "policy_too_large", (
        "A neighbor offers a policy of the fleet that is larger than 256 KiB; write fewer entries, for example by prefix.")
    POLICY_ISSUER = 0, "drop", "policy_issuer", (
        "A neighbor offers a policy of the fleet of an issuer that is not trusted here; check policy_issuers on both nodes.")
    POLICY_SIGNATURE = 0, "drop", "policy_signature", (
        "The signature of an offered policy of the fleet is wrong; look at the neighbor, which may be an attacker.")
    POLICY_CONTENT = 0, "drop", "policy_content", (
        "A neighbor sent other bytes than the issuer of the policy signed; another neighbor is asked, but look at this one.")
    POLICY_STALLED = 0, "drop", "policy_stalled", (
        "A neighbor stopped sending the policy of the fleet; another one is asked.")
    POLICY_UNEXPECTED = 0, "drop", "policy_unexpected", (
        "A part of a policy came without a question, or was asked for and is not here; late ones are normal after a change.")
    POLICY_UNSENT = 0, "drop", "policy_unsent", (
        "A message about the policy of the fleet was not sent because too much waits for the peer; it is repeated.")
    REFUSE_POLICY = 0, "refuse", "policy", (
        "The policy of the fleet cannot be applied at this node, which keeps the old one; see its audit log for the reason.")

    # ── joining (node/invites/) ─────────────────────────────────────────────────────────────

    REFUSE_JOIN_UNKNOWN = 0, "refuse", "join_unknown", (
        "This node has no such invite: it is of another node, or was over long ago; check the address, or make a new one with `meshbus invite`.")
    REFUSE_JOIN_PROOF = 0, "refuse", "join_proof", (
        "A newcomer did not prove that it has the token of an invite, or the key that it wants to join with; copy the token again, and look for an attack if this continues.")
    REFUSE_JOIN_OTHER_KEY = 0, "refuse", "join_other_key", (
        "Another node has used this invite first; if that was not yours, the token was stolen: find that node in the audit log, and make a new invite.")
    REFUSE_JOIN_USED = 0, "refuse", "join_used", (
        "The invite was used already, by this node; start it with the files from then, or make a new invite.")
    REFUSE_JOIN_EXPIRED = 0, "refuse", "join_expired", (
        "The invite was not used in time; make a new one with `meshbus invite`.")
    REFUSE_JOIN_WITHDRAWN = 0, "refuse", "join_withdrawn", (
        "An operator withdrew the invite; ask for a new one.")
    REFUSE_JOIN_ISSUER = 0, "refuse", "join_issuer", (
        "The invite was made under another issuer than the one that signs for this node now; make a new one.")
    REFUSE_JOIN_STORAGE = 0, "refuse", "join_storage", (
        "The inviting node cannot write its invites or its audit log, and admits no node without; look at its disk, and try again.")
    REFUSE_JOIN_BUSY = 0, "refuse", "join_busy", (
        "Too many connections of newcomers are open, of all or of one host; try again in a moment, and look for an attack if this continues.")
    REFUSE_JOIN_THROTTLED = 0, "refuse", "join_throttled", (
        "A host was refused too often within a minute, and is not answered for a while; find out why it was refused before.")
    JOIN_MALFORMED = 0, "drop", "join_malformed", (
        "Bytes that are not a request to join came to the address for newcomers; look for another program, or a scan of ports.")
    JOIN_TIMEOUT = 0, "drop", "join_timeout", (
        "A newcomer connected and did not send its request or its confirmation in time; a single one is harmless.")

    # ── revocation ──────────────────────────────────────────────────────────────────────────

    REVOCATION_MALFORMED = 0, "drop", "revocation_malformed", (
        "A message about revocations cannot be read; check the version of the peer.")
    REVOCATION_KNOWN = 0, "drop", "revocation_known", (
        "A neighbor sent a revocation that this node has already; normal, because several neighbors send each of them.")
    REVOCATION_ISSUER = 0, "drop", "revocation_issuer", (
        "A neighbor sent a revocation or a succession of an issuer that is not trusted here; check policy_issuers on both nodes.")
    REVOCATION_SIGNATURE = 0, "drop", "revocation_signature", (
        "The signature of a revocation is wrong; look at the neighbor, which may be an attacker.")
    REVOCATION_OVER = 0, "drop", "revocation_over", (
        "A neighbor sent the revocation of a token that expired long ago; check the clocks of both nodes if this continues.")
    REVOCATION_FULL = 0, "drop", "revocation_full", (
        "This node holds as many revocations or successions as it can, so a new one was refused; an issuer or a member has signed too many, so look at what it does.")
    REVOCATION_UNSENT = 0, "drop", "revocation_unsent", (
        "A message about revocations was not sent because too much waits for the peer; it is repeated.")
    REFUSE_REVOKED = 0, "refuse", "revoked", (
        "A node was refused because its key was revoked; `meshbus revoke ls` shows by whom and why.")
    REFUSE_REVOCATION = 0, "refuse", "revocation", (
        "A revocation is in effect, but could not be written to disk, so that a restart would forget it; check the disk.")
    LAPSE_REVOKED = 0, "lapse", "revoked", (
        "A subscription ended because the key of its subscriber was revoked; `meshbus revoke ls` shows by whom and why.")
    ANNOUNCEMENT_REVOKED = 0, "drop", "announcement_revoked", (
        "An announcement is about a node whose key was revoked, and is neither kept nor forwarded.")
    PINGWAVE_REVOKED = 0, "drop", "pingwave_revoked", (
        "A pingwave is of a node whose key was revoked, and leads nowhere.")

    # ── ZeroMQ edge ─────────────────────────────────────────────────────────────────────────

    EVENT_QUEUE_FULL = 0, "drop", "event_queue_full", (
        "The application does not read the events of its XPUB endpoint; read them, or use PUB.")
    TELLING = 0, "drop", "telling", (
        "Refusals come faster than they are reported, so this one was only counted; see the `refuse_*` counters.")
    IGNORE_UPSTREAM_MESSAGE = 0, "ignore", "upstream_message", (
        "A subscriber sent a message that is not a subscription, which a PUB endpoint ignores; use another socket type to send.")
    REFUSE_PUBLISH_PARTS = 0, "refuse_publish", "parts", (
        "A message does not have exactly two parts; send the topic and the event.")
    REFUSE_PUBLISH_TOO_LARGE = 0, "refuse_publish", "too_large", (
        "An event is larger than a packet holds; send smaller events.")
    REFUSE_PUBLISH_BEHIND = 0, "refuse_publish", "behind", (
        "The application publishes faster than the mesh can send; publish less, or more slowly.")
    REFUSE_PUBLISH_BAD_TOPIC = 0, "refuse_publish", "bad_topic", (
        "The topic is not a valid channel name; use a-z, 0-9, `-`, `_`, `.` and `/`.")
    REFUSE_PUBLISH_NOT_EXPOSED = 0, "refuse_publish", "not_exposed", (
        "The channel of the topic is not in channels_in; add it there.")
    REFUSE_PUBLISH_TOO_MANY_CHANNELS = 0, "refuse_publish", "too_many_channels", (
        "The bridge has reached its limit of channels; use fewer topics.")
    REFUSE_SUBSCRIBE_NOT_EXPOSED = 0, "refuse_subscribe", "not_exposed", (
        "No channel in channels_out has such a topic; add it there.")
    REFUSE_SUBSCRIBE_NO_PREFIXES = 0, "refuse_subscribe", "no_prefixes", (
        "The publisher is a plain net-mesh node, which knows single channels only; subscribe to its channels one by one.")
    REFUSE_SUBSCRIBE_TOO_MANY_PREFIXES = 0, "refuse_subscribe", "too_many_prefixes", (
        "The bridge has reached its limit of prefixes; subscribe to fewer, shorter ones.")

    # fmt: on


class DropReason(IntEnum):
    """Why a gateway drops a packet: the gateway's part of `Reason`, by code; 0 means forward."""

    SUBNET_LOCAL = Reason.SUBNET_LOCAL.code
    NOT_ANCESTOR = Reason.NOT_ANCESTOR.code
    NOT_EXPORTED = Reason.NOT_EXPORTED.code
    UNKNOWN_SUBNET = Reason.UNKNOWN_SUBNET.code
    TTL_EXPIRED = Reason.TTL_EXPIRED.code
    UNAUTHORIZED_PUBLISHER = Reason.UNAUTHORIZED_PUBLISHER.code
    UNRESOLVED_CHANNEL = Reason.UNRESOLVED_CHANNEL.code


RECORDED: Final[dict[int, Reason]] = {reason.code: reason for reason in Reason if reason.code}
"""The reasons that packet files carry, by code."""

BEFORE_GATEWAY: Final = frozenset(
    reason.code for reason in (Reason.NO_ROUTE, Reason.OWN, Reason.STRANGER, Reason.RETURNING, Reason.REVOKED)
)
"""Codes of packets for other nodes that were dropped before the gateway judged them."""
