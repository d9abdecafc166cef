//! Names that differ only in spelling.

/// Returns `true` if two different names are equal except for case, `-` and `_`, or if at most two letters were changed,
/// added, left out or swapped with a neighbour. Among short names, chance makes such pairs: one letter may differ if the
/// longer name has less than six, and none if it has less than four.
pub(crate) fn is_near(one: &str, other: &str) -> bool {
    if one == other {
        return false;
    }
    let one = letters(one);
    let other = letters(other);
    let most = match one.len().max(other.len()) {
        0..4 => 0,
        4..6 => 1,
        _ => 2,
    };
    one == other || (one.len().abs_diff(other.len()) <= most && distance(&one, &other) <= most)
}

fn letters(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// Returns the number of letters to change, add, leave out or swap with a neighbour (optimal string alignment).
fn distance(one: &[char], other: &[char]) -> usize {
    // Row `i` has the distances between the first `i` letters of `one` and each beginning of `other`.
    let first: Vec<usize> = (0..=other.len()).collect();
    let mut before = first.clone();
    let mut last = first;
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, against) in other.iter().enumerate() {
            let changed = last[j] + usize::from(letter != against);
            let added_or_left_out = 1 + row[j].min(last[j + 1]);
            let is_swapped = i > 0 && j > 0 && *letter == other[j - 1] && *against == one[i - 1];
            let swapped = if is_swapped { 1 + before[j - 1] } else { usize::MAX };
            row.push(changed.min(added_or_left_out).min(swapped));
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::is_near;

    #[test]
    fn names_are_near_if_they_differ_in_case_in_dashes_or_in_up_to_two_letters() {
        let near = [
            ("Tool", "tool"),
            ("read_file", "read-file"),
            ("readFile", "read_file"),
            ("delete", "delte"),
            ("delete", "dleete"),
            ("delete", "dlete_"),
            ("delete", "dleet"),
            ("delete", "deleted"),
            ("delete", "delxtx"),
            ("read", "raed"),
            ("Get", "get"),
            ("\u{e9}crire", "ecrire"),
        ];
        for (one, other) in near {
            assert!(is_near(one, other) && is_near(other, one), "{one} {other}");
        }
        let far = [
            ("delete", "delete"),
            ("delete", "read"),
            ("delete", "remove"),
            ("delete", "dxlxtx"),
            ("get", "set"),
            ("read", "rexx"),
            ("", "add"),
            ("", ""),
        ];
        for (one, other) in far {
            assert!(!is_near(one, other) && !is_near(other, one), "{one} {other}");
        }
    }
}
