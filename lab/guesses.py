"""Predict before you run: the reader's guess at each verdict, scored when the verdicts are there."""

MEANS = {"supported": "holds", "proved": "holds", "refuted": "fails", "disproved": "fails", "inconclusive": "undecided"}


class Guesses:
    """One choice a claim: holds, fails or undecided; what is left empty is not scored."""

    def __init__(self, claims):
        from ipywidgets import Dropdown, Layout

        options = ["", *dict.fromkeys(MEANS.values())]
        style = {"style": {"description_width": "24em"}, "layout": Layout(width="36em")}
        self.boxes = {claim.id: Dropdown(options=options, description=claim.id, **style) for claim in claims}

    def form(self):
        from ipywidgets import HTML, Accordion, VBox

        said = HTML("What will be measured? Guess before you run on; the last cell counts what you got right.")
        return Accordion([VBox([said, *self.boxes.values()])], titles=("Predict before you run",))

    def score(self, verdicts):
        """A sentence for a list of verdicts: how many guesses were right, and which were not; "" without guesses."""
        found = {verdict.id: MEANS.get(verdict.verdict) for verdict in verdicts}
        made = {name: box.value for name, box in self.boxes.items() if box.value and found.get(name)}
        if not made:
            return ""
        wrong = [f"{name}: {guess}, measured: {found[name]}" for name, guess in made.items() if guess != found[name]]
        return f"{len(made) - len(wrong)} of {len(made)} guesses were right" + "".join(f"\n* {line}" for line in wrong)
