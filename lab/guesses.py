"""What a reader expects of each claim before it is measured, and how much of that was right."""

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
    """One choice a claim: holds, fails or undecided; what is left empty is not scored."""

    def __init__(self, claims):
        from ipywidgets import Dropdown, Layout

        self.sentences = {claim.id: claim.sentence for claim in claims}
        self.words = {"holds": tr("holds"), "fails": tr("fails"), "undecided": tr("undecided")}
        options = [("", ""), *((word, guess) for guess, word in self.words.items())]
        self.boxes = {
            name: Dropdown(options=options, layout=Layout(width="8em")) for name in self.sentences
        }

    def form(self):
        """Every claim as its sentence, with its choice before it."""
        from ipywidgets import HTML, Accordion, HBox, Layout, VBox

        said = tr(
            "What will be measured? Guess before you run on; the last cell counts what you got right."
        )
        lines = [
            HBox([box, HTML(html.escape(self.sentences[name]), layout=Layout(flex="1"))])
            for name, box in self.boxes.items()
        ]
        return Accordion(
            [VBox([HTML(said), *lines])], titles=(tr("Predict before you run"),), selected_index=0
        )

    def made(self):
        """{claim: guess} of those that were chosen."""
        return {name: box.value for name, box in self.boxes.items() if box.value}

    def score(self, lines):
        """Markdown for the lines of claims: how many guesses were right, and a line for each; ""
        without guesses.

        Only what was judged counts: no question, and nothing that is open, out of reach or not run.
        A claim of several parts counts where all come out alike.
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
