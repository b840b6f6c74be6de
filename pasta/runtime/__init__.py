"""Running tools on events: live, embedded in the target, afterwards and replayed."""
