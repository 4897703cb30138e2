from unmask.given import natural


def test_numbers_by_value_then_texts():
    assert sorted(["b", "10", "nan", "2", "-1e3", "a"], key=natural) == ["-1e3", "2", "10", "a", "b", "nan"]
    assert sorted(["3", "nan", "1"], key=natural) == sorted(["1", "3", "nan"], key=natural)
