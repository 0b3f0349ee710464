// "Your turn" without Python: controls that choose which of a figure's stored states is shown.

function turn(figure) {
  const controls = [...figure.querySelectorAll("input")];
  const states = [...figure.querySelector(".states").children];
  const show = () => {
    let place = 0;
    for (const control of controls) {
      const label = JSON.parse(control.dataset.labels)[control.value];
      control.nextElementSibling.textContent = label;
      control.setAttribute("aria-valuetext", label);
      place = place * (Number(control.max) + 1) + Number(control.value);
    }
    states.forEach((state, i) => (state.hidden = i !== place));
  };
  controls.forEach((control) => control.addEventListener("input", show));
  figure.querySelector(".controls").hidden = false;
  show();
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("figure.turn").forEach(turn));
