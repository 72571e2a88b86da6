"""An animated SVG from what a terminal showed: rows of styled text, each visible for its time.

Plays through CSS, so that it also does where scripts are off, such as in an image of a README;
light and dark follow the reader's setting, and who wants no motion sees the last frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from xml.sax.saxutils import escape

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE, MARGIN = 8.4, 18.0, 14, 14.0

# By the names that pyte gives to ANSI's colours: on a light and on a dark ground.
COLORS = {
    "default": ("#1f2328", "#e6edf3"),
    "black": ("#24292f", "#6e7681"),
    "red": ("#cf222e", "#ff7b72"),
    "green": ("#116329", "#56d364"),
    "brown": ("#7d4e00", "#e3b341"),  # what a terminal calls yellow
    "blue": ("#0550ae", "#79c0ff"),
    "magenta": ("#8250df", "#d2a8ff"),
    "cyan": ("#1b7c83", "#56d4dd"),
    "white": ("#57606a", "#c9d1d9"),
}
GROUND, EDGE = ("#ffffff", "#0d1117"), ("#d1d9e0", "#3d444d")


@dataclass(frozen=True)
class Style:
    """How one cell looks; colours are names of `COLORS` or six hexadecimal digits."""

    color: str = "default"
    ground: str = "default"
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underlined: bool = False
    struck: bool = False


Row = tuple[tuple[int, str, Style], ...]
"""Runs of one style: column, text without blanks at both ends of the row, style."""


@dataclass(frozen=True)
class Frame:
    """What the terminal showed from `seconds` on, row by row from the top."""

    seconds: float
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Shown:
    """A row's content and when it was there; `end` None: to the end."""

    y: int
    row: Row
    start: float
    end: float | None


def paced(
    frames: Sequence[Frame], *, shortest: float, longest: float, struck: float, within: float
) -> list[Frame]:
    """Frames at a pace that one can watch, the first one at 0.

    Args:
        frames: as they came.
        shortest: seconds that a frame stays at least; of those that change sooner the last
            one is kept.
        longest: seconds to which waits are cut.
        struck: seconds that a frame with struck text stays at least.
        within: seconds that all of it may take, but for `struck`; played faster where it is more.
    """
    waits = [min(b.seconds - a.seconds, longest) for a, b in pairwise(frames)]
    speed = max(sum(waits) / within, 1.0)
    kept: list[Frame] = []
    clock = 0.0
    for wait, frame in zip([0.0, *waits], frames, strict=True):
        clock += wait / speed
        if kept and _has_struck(kept[-1]):
            clock = max(clock, kept[-1].seconds + struck)
        begin = clock
        if kept and clock - kept[-1].seconds < shortest:
            begin = kept.pop().seconds
        if not kept or kept[-1].rows != frame.rows:
            kept.append(Frame(begin, frame.rows))
    return kept


def _has_struck(frame: Frame) -> bool:
    return any(style.struck for row in frame.rows for _, _, style in row)


def intervals(frames: Sequence[Frame]) -> list[Shown]:
    """Every row's contents with their times: what does not change is there once."""
    found: list[Shown] = []
    for y in range(max((len(frame.rows) for frame in frames), default=0)):
        contents = [(f.seconds, f.rows[y] if y < len(f.rows) else ()) for f in frames]
        changes = [next(group) for _, group in groupby(contents, key=lambda item: item[1])]
        ends = [start for start, _ in changes[1:]] + [None]
        found += [
            Shown(y, row, start, end)
            for (start, row), end in zip(changes, ends, strict=True)
            if row
        ]
    return found


def render(frames: Sequence[Frame], *, columns: int, lines: int, hold: float, title: str) -> str:
    """The SVG.

    Args:
        frames: in the order of their times, the first one at 0.
        columns, lines: size of the terminal in cells.
        hold: seconds for which the last frame stays before it begins again.
        title: what a screen reader says.
    """
    total = frames[-1].seconds + hold
    width, height = columns * CELL_WIDTH + 2 * MARGIN, lines * CELL_HEIGHT + 2 * MARGIN
    shown = intervals(frames)
    styles = sorted({style for s in shown for _, _, style in s.row}, key=repr)
    names = {style: f"s{i}" for i, style in enumerate(styles)}
    rules, rows = [], []
    for i, item in enumerate(shown):
        last = item.end is None
        animated = not (last and item.start == 0)
        if animated:
            rules.append(_visible(f"r{i}", item, total))
        classes = " ".join([f"r{i}"] * animated + ["z"] * last)
        rows.append(f'<g class="{classes}">{_row(item, names)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{escape(title)}">\n'
        f"<style>\n{_css(names)}\n" + "\n".join(rules) + "\n"
        "@media(prefers-reduced-motion:reduce){g{animation:none!important}}\n"
        f'</style>\n<rect class="page" x="0.5" y="0.5" width="{width - 1:g}" '
        f'height="{height - 1:g}" rx="8"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def _visible(name: str, item: Shown, total: float) -> str:
    frames = [] if item.start == 0 else [(0.0, "hidden")]
    frames.append((item.start, "visible"))
    if item.end is not None:
        frames.append((item.end, "hidden"))
    steps = "".join(f"{100 * at / total:.2f}%{{visibility:{what}}}" for at, what in frames)
    return f"@keyframes {name}{{{steps}}}.{name}{{animation:{name} {total:.2f}s step-end infinite}}"


def _row(item: Shown, names: dict[Style, str]) -> str:
    top = MARGIN + item.y * CELL_HEIGHT
    parts = []
    for column, text, style in item.row:
        x, width = MARGIN + column * CELL_WIDTH, len(text) * CELL_WIDTH
        if style.ground != "default":
            parts.append(
                f'<rect class="{names[style]}g" x="{x:.1f}" y="{top:g}" '
                f'width="{width:.1f}" height="{CELL_HEIGHT:g}"/>'
            )
        if text.strip() or style.underlined or style.struck:
            # A fixed length keeps the columns straight in whatever font there is.
            parts.append(
                f'<text class="{names[style]}" x="{x:.1f}" y="{top + 13.5:g}" '
                f'textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
            )
    return "".join(parts)


def _css(names: dict[Style, str]) -> str:
    light, dark = [], []
    for style, name in names.items():
        kind = ["font-weight:700"] * style.bold + ["font-style:italic"] * style.italic
        lines = ["underline"] * style.underlined + ["line-through"] * style.struck
        kind += [f"text-decoration:{' '.join(lines)}"] * bool(lines)
        kind += ["opacity:.55"] * style.dim
        colors = _colors(style.color)
        light.append(f".{name}{{{';'.join([f'fill:{colors[0]}', *kind])}}}")
        if colors[1] != colors[0]:
            dark.append(f".{name}{{fill:{colors[1]}}}")
        if style.ground != "default":
            grounds = _colors(style.ground)
            light.append(f".{name}g{{fill:{grounds[0]}}}")
            dark.append(f".{name}g{{fill:{grounds[1]}}}")
    font = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    return (
        f"text{{font:{FONT_SIZE}px {font};white-space:pre}}g{{visibility:hidden}}"
        ".z{visibility:visible}\n"
        f".page{{fill:{GROUND[0]};stroke:{EDGE[0]}}}{''.join(light)}\n"
        f"@media(prefers-color-scheme:dark){{.page{{fill:{GROUND[1]};stroke:{EDGE[1]}}}"
        f"{''.join(dark)}}}"
    )


def _colors(name: str) -> tuple[str, str]:
    plain = name.removeprefix("bright")
    if plain in COLORS:
        return COLORS[plain]
    return (f"#{name}", f"#{name}")
