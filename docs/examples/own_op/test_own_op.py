def test_planned_cases(parity_case, parity_check):
    parity_check(parity_case)
