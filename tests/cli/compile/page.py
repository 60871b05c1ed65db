"""Reads a page of HTML back."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Collects the links and the text of a page, and checks that tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.widths: list[float] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta",):
            self._open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action"):
                self.links.append(str(value))
            if name == "id":
                self.ids.append(str(value))
            if name == "style":
                self.widths.append(float(str(value).removeprefix("width:").removesuffix("%")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())
