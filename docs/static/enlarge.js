// A click on a figure opens it in its full size.
document.addEventListener("DOMContentLoaded", () => {
  for (const image of document.querySelectorAll("article img:not(a img)")) {
    const link = document.createElement("a");
    link.href = image.src;
    link.className = "enlarge";
    image.replaceWith(link);
    link.append(image);
  }
});
