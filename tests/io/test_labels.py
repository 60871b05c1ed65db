from gossamer.io.labels.reader import class_names


def test_imagenet_names_ship_with_the_package():
    names = class_names(None, 1000)
    assert names[285] == "Egyptian cat" and names[0] == "tench" and names[999] == "toilet tissue"
    assert class_names(None, 10) is None
