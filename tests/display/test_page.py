"""What is shown of values is one line or a table, however long and odd they are."""

from sandboxkit.display.page import CHARACTERS, LINES, Page, shortened


def test_text_is_cut_by_lines_and_by_characters_and_says_how_much() -> None:
    assert shortened("a\nb") == "a\nb"
    many = shortened("\n".join(map(str, range(100_000))))
    assert len(many.splitlines()) <= LINES + 1
    assert many.startswith("0\n1\n")
    assert many.endswith("\n99999")
    wide = shortened("x" * 1_000_000)
    assert len(wide) < CHARACTERS + 100
    assert "996000 characters left out" in wide


def test_nothing_breaks_out_of_the_line_or_the_table() -> None:
    evil = "</td></table><script>x</script>\n\x1b]0;title\x07\x1b[2J\x00\u202e\r"
    page = Page(evil, evil, "bad", {evil: evil}, {evil: evil})
    assert page.html().count("<script") == 0
    assert page.html().count("</table>") == 1
    for shown in (page.html(), page.text()):
        assert not set("\x00\x1b\x07\r\u202e") & set(shown)
    assert "\n" not in page.text()
