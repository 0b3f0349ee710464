"""Whether a finished trial is still valid: comparing its code, kinds and data with today's."""


class State:
    """The code, kinds and data of one trial as they are now.

    `code` is a `Code`; `kind_hash(name)` and `data_hash(name)` return the hashes of today.
    """

    def __init__(self, code, kind_hash, data_hash):
        self.code, self.kind_hash, self.data_hash = code, kind_hash, data_hash

    def agrees(self, body):
        """Whether a body, a finished trial, was made by this code with these kinds and data."""
        return body["code"] == self.code.digest and not any(self._changed(body).values())

    def accepts(self, body, accepted):
        """The accepted change from the body's code, kinds and data to today's; None without one."""
        changed = self._changed(body)
        for each in accepted:
            old, new = each["old"], each["new"]
            codes = (body["code"], self.code.digest)
            if each["accepted"] != body["trial"] or (old["code"], new["code"]) != codes:
                continue
            if all(
                old[part].get(name) == body[part][name] and new[part].get(name) == now
                for part in changed
                for name, now in changed[part].items()
            ):
                return each
        return None

    def _changed(self, body):
        """{"kinds": {name: hash now}, "data": …} of the body's kinds and data that have changed."""
        now = {"kinds": self.kind_hash, "data": self.data_hash}
        changed = {}
        for part, hash_now in now.items():
            hashes = {name: hash_now(name) for name in body[part]}
            changed[part] = {
                name: found for name, found in hashes.items() if found != body[part][name]
            }
        return changed

    def differences(self, body):
        """The sorted names of code parts, then of kinds and data, that changed since this run."""
        was, now = body["parts"], self.code.parts
        own = {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}
        return sorted(own) + sorted(name for part in self._changed(body).values() for name in part)

    def sides(self, bodies):
        """Two dicts {"code", "kinds", "data"} of hashes: those of the bodies, and today's."""
        old, new = {"code": bodies[0]["code"]}, {"code": self.code.digest}
        for part, now in (("kinds", self.kind_hash), ("data", self.data_hash)):
            old[part] = {name: value for body in bodies for name, value in body[part].items()}
            new[part] = {name: now(name) for name in old[part]}
        return old, new
