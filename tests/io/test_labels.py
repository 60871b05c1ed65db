from gossamer.io.labels.reader import class_names, without_blanks


def test_imagenet_names_ship_with_the_package():
    names = class_names(None, 1000)
    assert names[285] == "Egyptian cat" and names[0] == "tench" and names[999] == "toilet tissue"
    assert class_names(None, 10) is None and class_names(None, 2, ["own"]) is None
    assert class_names(None, 2, ["own"] * 2) == ["own"] * 2


def test_empty_names_count_where_the_number_of_classes_says_so() -> None:
    assert without_blanks(["cat", "", "dog"], 2) == ["cat", "dog"]
    assert without_blanks(["cat", "", "dog"], 3) == ["cat", "", "dog"]
    assert without_blanks(["cat", ""], 5) == ["cat", ""]


def test_a_file_names_every_class(tmp_path):
    path = tmp_path / "names"
    path.write_bytes(b"\xef\xbb\xbfa \n\n b\n\n\n")
    assert class_names(path, 3, ["own"] * 3) == ["a", "", "b"]
