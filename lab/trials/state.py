"""Whether a finished trial counts: what it was made of, beside code, kinds and data as they are
now.
"""


class State:
    """Code, kinds and data of one trial as they are now."""

    def __init__(self, code, kind_hash, data_hash):
        self.code, self.kind_hash, self.data_hash = code, kind_hash, data_hash

    def agrees(self, body):
        """Whether a body was made by this code, with these kinds and data."""
        return body["code"] == self.code.digest and not any(self._changed(body).values())

    def accepts(self, body, accepted):
        """The change among those accepted that leads from what made the body to what is there now,
        or None.
        """
        changed = self._changed(body)
        for each in accepted:
            old, new = each["old"], each["new"]
            if each["accepted"] != body["trial"] or (old["code"], new["code"]) != (
                body["code"],
                self.code.digest,
            ):
                continue
            if all(
                old[part].get(name) == body[part][name] and new[part].get(name) == now
                for part in changed
                for name, now in changed[part].items()
            ):
                return each
        return None

    def _changed(self, body):
        """{"kinds" and "data": {name: its hash now}} of those that are not what the body was made
        of.
        """
        now = {"kinds": self.kind_hash, "data": self.data_hash}
        changed = {}
        for part, hash_now in now.items():
            hashes = {name: hash_now(name) for name in body[part]}
            changed[part] = {
                name: found for name, found in hashes.items() if found != body[part][name]
            }
        return changed

    def differences(self, body):
        """Names of the parts of code, the kinds and data that are not what the body was made of."""
        was, now = body["parts"], self.code.parts
        own = {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}
        return sorted(own) + sorted(name for part in self._changed(body).values() for name in part)

    def sides(self, bodies):
        """What made the bodies, and what is there now: {"code", "kinds", "data"} of both."""
        old, new = {"code": bodies[0]["code"]}, {"code": self.code.digest}
        for part, now in (("kinds", self.kind_hash), ("data", self.data_hash)):
            old[part] = {name: value for body in bodies for name, value in body[part].items()}
            new[part] = {name: now(name) for name in old[part]}
        return old, new
