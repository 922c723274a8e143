"""Reports as pages, taken apart."""

import html.parser
import json


class Page(html.parser.HTMLParser):
    """The elements of a page and the text of its cells; raises where one is left open."""

    EMPTY = ("meta", "input", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text, self.data = [], [], [], None
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.text.append(text)
        if self.elements and self.elements[-1][1].get("id") == "data" and self.data is None:
            self.data = json.loads(text)

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)


ATTACK = "<img src=x onerror='window.attacked=1'></script><script>window.attacked=1</script>"


KEY = "arguments[0].dispatchEvent(new KeyboardEvent('keydown', {key: arguments[1], bubbles: true}))"
