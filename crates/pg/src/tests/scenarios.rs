//! What happens in single situations that must not go wrong.

use super::world::World;

#[test]
fn a_new_pool_serves_and_all_members_hold_what_was_written() {
    let mut world = World::new(1, 3, 3);
    world.settle();
    assert!(world.is_whole());
    let at = world.server().unwrap();
    let number = world.write(at, 1, 0, 2);
    world.settle();
    assert!(matches!(world.history.outcome(number), Some(Ok(_))));
    world.check_equal();
    assert_eq!(world.blocks(2).len(), 1);
    assert_eq!(world.value(1, 1), 2);
}
