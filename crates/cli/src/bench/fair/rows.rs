//! The rows of `bench fair`: which groups, which hogs, which figure.

/// One group and its own hogs.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// Its path; parents are listed before their children.
    pub path: String,
    /// 1..=10000.
    pub weight: u32,
    /// Hogs of its own.
    pub hogs: u32,
}

fn group(path: &str, weight: u32, hogs: u32) -> GroupPlan {
    GroupPlan {
        path: path.to_owned(),
        weight,
        hogs,
    }
}

/// What is made of the shares.
#[derive(Clone, Debug)]
pub enum Figure {
    /// One group's share over another's, children included.
    Ratio {
        /// The group above the line.
        over: String,
        /// The group below it.
        under: String,
    },
    /// The largest share over the smallest.
    MaxOverMin,
}

fn ratio(over: &str, under: &str) -> Figure {
    Figure::Ratio {
        over: over.to_owned(),
        under: under.to_owned(),
    }
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its key in the JSON object.
    pub bench: &'static str,
    /// What the weights promise.
    pub ideal: f64,
    /// Parents first.
    pub groups: Vec<GroupPlan>,
    /// How shares become a number.
    pub figure: Figure,
}

/// All rows. Groups whose share is more than one CPU of two have several hogs, or they could not use it.
pub fn all() -> Vec<Row> {
    vec![
        Row {
            bench: "w1_3",
            ideal: 3.0,
            groups: vec![group("light", 100, 8), group("heavy", 300, 8)],
            figure: ratio("heavy", "light"),
        },
        // The parents' weights decide, although the light one's children weigh more and are more.
        Row {
            bench: "nested_1_3",
            ideal: 3.0,
            groups: vec![
                group("light", 100, 0),
                group("light/a", 1000, 4),
                group("light/b", 1000, 4),
                group("light/c", 1000, 4),
                group("heavy", 300, 0),
                group("heavy/a", 100, 4),
                group("heavy/b", 100, 4),
            ],
            figure: ratio("heavy", "light"),
        },
        // The children's weights share what their parent gets beside an equal neighbour.
        Row {
            bench: "nested_1_2",
            ideal: 2.0,
            groups: vec![
                group("parent", 100, 0),
                group("parent/light", 100, 4),
                group("parent/heavy", 200, 4),
                group("neighbour", 100, 8),
            ],
            figure: ratio("parent/heavy", "parent/light"),
        },
        equal("equal_100_max_over_min", 100),
        equal("equal_1000_max_over_min", 1000),
        Row {
            bench: "anti_gaming",
            ideal: 1.0,
            groups: vec![group("many", 100, 100), group("one", 100, 1)],
            figure: ratio("many", "one"),
        },
    ]
}

fn equal(bench: &'static str, count: u32) -> Row {
    let groups = (0..count)
        .map(|number| group(&format!("tenant-{number}"), 100, 1))
        .collect();
    Row {
        bench,
        ideal: 1.0,
        groups,
        figure: Figure::MaxOverMin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promised_keys_are_there_in_their_order() {
        let keys: Vec<_> = all().iter().map(|row| row.bench).collect();
        let promised = [
            "w1_3",
            "nested_1_3",
            "nested_1_2",
            "equal_100_max_over_min",
            "equal_1000_max_over_min",
            "anti_gaming",
        ];
        assert_eq!(keys, promised);
    }

    #[test]
    fn parents_come_first_and_figures_name_groups_of_their_row() {
        for row in all() {
            let has = |path: &str, before: usize| {
                row.groups[..before].iter().any(|group| group.path == path)
            };
            for (index, group) in row.groups.iter().enumerate() {
                if let Some((parent, _)) = group.path.rsplit_once('/') {
                    assert!(has(parent, index), "{} in {}", group.path, row.bench);
                }
            }
            if let Figure::Ratio { over, under } = &row.figure {
                assert!(
                    has(over, row.groups.len()) && has(under, row.groups.len()),
                    "{}",
                    row.bench
                );
            }
        }
    }
}
