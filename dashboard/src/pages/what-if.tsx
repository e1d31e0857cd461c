/** Both futures: the cluster left as it is, and with changes. */
export function WhatIfPage() {
  return <h1>What if</h1>;
}
