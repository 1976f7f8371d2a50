"""What runs next: requests, the step planner, and the policies of real servers. Integers only."""
