"""The guesses of a reader: what each claim will come to, and how many guesses were right."""

import html

from lab.language import tr

MEANS = {
    "supported": "holds",
    "proved": "holds",
    "checked": "holds",
    "refuted": "fails",
    "disproved": "fails",
    "not everywhere": "fails",
    "undecided": "undecided",
}


class Guesses:
    """A choice for each claim: holds, fails or undecided; an empty choice is not scored."""

    def __init__(self, claims):
        from ipywidgets import Dropdown, Layout

        self.sentences = {claim.id: claim.sentence for claim in claims}
        self.words = {"holds": tr("holds"), "fails": tr("fails"), "undecided": tr("undecided")}
        options = [("", ""), *((word, guess) for guess, word in self.words.items())]
        self.boxes = {
            name: Dropdown(options=options, layout=Layout(width="8em")) for name in self.sentences
        }

    def form(self):
        """The widget with a line for each claim: its choice, then its sentence."""
        from ipywidgets import HTML, Accordion, HBox, Layout, VBox

        said = tr(
            "What will be measured? Guess before you run on; "
            "the last cell counts what you got right."
        )
        lines = [
            HBox([box, HTML(html.escape(self.sentences[name]), layout=Layout(flex="1"))])
            for name, box in self.boxes.items()
        ]
        return Accordion(
            [VBox([HTML(said), *lines])], titles=(tr("Predict before you run"),), selected_index=0
        )

    def made(self):
        """{claim: guess}, without empty choices."""
        return {name: box.value for name, box in self.boxes.items() if box.value}

    def score(self, lines):
        """Markdown with the number of right guesses and a line for each; "" without guesses.

        `lines` are those of all claims. Claims that are questions, open, out of reach or not run
        are not scored, nor are claims whose parts have different results.
        """
        labels = {}
        for line in lines:
            labels.setdefault(line.id, set()).add(MEANS.get(line.label))
        found = {name: means.pop() for name, means in labels.items() if len(means) == 1}
        made = {name: guess for name, guess in self.made().items() if found.get(name)}
        if not made:
            return ""
        right = sum(guess == found[name] for name, guess in made.items())
        return "\n* ".join(
            [
                tr("{right} of {made} guesses were right", right=right, made=len(made)),
                *(self._line(name, guess, found[name]) for name, guess in made.items()),
            ]
        )

    def _line(self, name, guess, found):
        said = {
            "claim": self.sentences[name],
            "guess": self.words[guess],
            "found": self.words[found],
        }
        if guess == found:
            return tr("✓ {claim} Guessed and measured: {found}.", **said)
        return tr("✗ {claim} Guessed: {guess}; measured: {found}.", **said)
