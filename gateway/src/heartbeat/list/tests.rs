use proptest::prelude::*;

use super::*;

fn forwards(list: &List) -> Vec<u32> {
    std::iter::successors(list.first(), |slot| list.after(*slot)).collect()
}

fn backwards(list: &List) -> Vec<u32> {
    let before = |slot: &u32| some(list.links[*slot as usize].before);
    let mut slots: Vec<_> = std::iter::successors(some(list.last), before).collect();
    slots.reverse();
    slots
}

proptest! {
    /// Each step puts a slot in at the end, or takes it out if it is in.
    #[test]
    fn agrees_with_a_vec(steps in prop::collection::vec(0_u32..8, 1..100)) {
        let mut list = List::new();
        let mut model = Vec::new();
        for slot in steps {
            match model.iter().position(|held| *held == slot) {
                Some(index) => {
                    list.remove(slot);
                    model.remove(index);
                }
                None => {
                    list.push_back(slot);
                    model.push(slot);
                }
            }
            prop_assert_eq!(forwards(&list), model.clone());
            prop_assert_eq!(backwards(&list), model.clone());
        }
    }
}
